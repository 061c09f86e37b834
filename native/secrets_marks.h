// By what a secret is told: prefixes of keys, names of fields, and the two bytes of each that are looked for first.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "secrets_pairs.h"
#include "secrets_text.h"

namespace {

// A key of a provider: it begins with `prefix`, and `minimum` or more characters of `tail` follow.
struct Prefix {
  Text prefix;
  unsigned tail;
  std::uint16_t minimum;
  bool mixed;     // the tail holds a capital letter or at least three digits (class names in HTML begin with sk- too)
  bool exact;     // exactly `minimum` characters of the tail
  std::uint8_t pair;  // which of the prefix's characters, with the next, is looked for: the rarest in ordinary text
};

const Prefix kPrefixes[] = {
    {"sk-", kWord, 16, true, false, 1},          // OpenAI, Anthropic, OpenRouter, DeepSeek and others
    {"sk_live_", kAlnum, 10, false, false, 1},   // Stripe
    {"sk_test_", kAlnum, 10, false, false, 1},
    {"rk_live_", kAlnum, 10, false, false, 1},
    {"whsec_", kAlnum, 16, false, false, 4},
    {"AIza", kWord, 12, false, false, 1},        // Google
    {"ya29.", kWord, 20, false, false, 3},
    {"GOCSPX-", kWord, 20, false, false, 5},
    {"AKIA", kUpper | kDigit, 16, false, true, 2},  // Amazon
    {"ASIA", kUpper | kDigit, 16, false, true, 2},
    {"ghp_", kAlnum, 16, false, false, 2},       // GitHub
    {"gho_", kAlnum, 16, false, false, 2},
    {"ghu_", kAlnum, 16, false, false, 2},
    {"ghs_", kAlnum, 16, false, false, 2},
    {"ghr_", kAlnum, 16, false, false, 2},
    {"github_pat_", kWord, 20, false, false, 5},
    {"glpat-", kWord, 16, false, false, 4},      // GitLab
    {"xoxb-", kWord, 10, false, false, 3},       // Slack
    {"xoxp-", kWord, 10, false, false, 3},
    {"xoxa-", kWord, 10, false, false, 3},
    {"xoxr-", kWord, 10, false, false, 3},
    {"xoxs-", kWord, 10, false, false, 3},
    {"xoxe-", kWord, 10, false, false, 3},
    {"xoxe.", kWord | kCredential, 10, false, false, 3},
    {"xapp-", kWord, 10, false, false, 3},
    {"hf_", kAlnum, 20, false, false, 1},        // Hugging Face
    {"gsk_", kAlnum, 20, false, false, 2},       // Groq
    {"xai-", kAlnum, 20, false, false, 2},
    {"pplx-", kAlnum, 20, false, false, 3},
    {"nvapi-", kWord, 20, false, false, 4},
    {"tvly-", kWord, 16, true, false, 3},
    {"r8_", kAlnum, 20, false, false, 1},        // Replicate
    {"npm_", kAlnum, 20, false, false, 2},
    {"pypi-", kWord, 40, true, false, 3},
    {"SG.", kWord | kCredential, 40, true, false, 1},  // SendGrid
    {"dop_v1_", kAlnum, 32, false, false, 5},    // DigitalOcean
    {"shpat_", kAlnum, 20, false, false, 1},     // Shopify
    {"lin_api_", kAlnum, 20, false, false, 6},
    {"ntn_", kAlnum, 20, false, false, 2},       // Notion
    {"fw_", kAlnum, 20, true, false, 1},         // Fireworks
    {"hvs.", kWord, 20, true, false, 0},         // Vault
    {"dapi", kAlnum, 32, true, true, 0},         // Databricks
    {"lsv2_pt_", kWord, 20, true, false, 2},     // LangSmith
    {"lsv2_sk_", kWord, 20, true, false, 2},
    // Addresses that whoever knows them may post to: to a channel of Slack, and of Discord.
    {"hooks.slack.com/services/", kWord | kCredential, 20, true, false, 3},
    {"discord.com/api/webhooks/", kWord | kCredential, 20, true, false, 18},
    {"discordapp.com/api/webhooks/", kWord | kCredential, 20, true, false, 21},
    {"AGE-SECRET-KEY-1", kUpper | kDigit, 20, false, false, 14},
};

// Names whose value is a secret. Any word may stand before them (db_password, accessToken).
struct Name {
  Text name;
  std::uint8_t pair;  // which of its characters, with the next, is looked for: the rarest in ordinary text
};

const Name kNames[] = {
    {"password", 3}, {"passwd", 3}, {"pwd", 1},   {"passphrase", 3}, {"passcode", 3},      {"passwort", 3},
    {"secret", 2},   {"token", 2},  {"key", 0},   {"cookie", 3},     {"authorization", 6}, {"credential", 0},
};

// A key is a secret only by what stands before the word.
const Text kKeys[] = {"api",        "access", "secret", "private", "account", "signing",
                      "encryption", "master", "auth",   "shared",  "subscription"};

const Text kParameters[] = {"key", "sig", "signature", "code", "auth"};

// Commands and lines of files in which a password stands without a name: `curl -u user:password`, `mysql -ppassword`,
// `machine host login user password password`; and what else stands there then.
struct Command {
  Text name, sign;
  std::uint8_t pair;
};

const Command kCommands[] = {{"curl", "-u", 0}, {"mysql", "-p", 2}, {"mariadb", "-p", 5}, {"machine", "password", 2}};

struct Marks {
  std::array<std::uint8_t, 65536> group{};  // for each two bytes: which of `groups` looks further; 0: none
  struct Mark {
    enum Kind : std::uint8_t { kPrefixMark, kNameMark, kJwt, kBearer, kUrlMark, kPemMark, kParameter, kEscape, kCommandMark, kTelegram } kind;
    std::uint8_t index, offset;
    Text text;  // what stands there; only its character beside the pair is looked at, which ends most looks at once
    std::int8_t beside = 0;
    char character = 0;
  };
  std::vector<std::vector<Mark>> groups{{}};
  PairFilter filter;

  void add(char first, char second, Mark mark) {
    const unsigned pair = static_cast<std::uint8_t>(first) | static_cast<unsigned>(static_cast<std::uint8_t>(second)) << 8;
    if (!group[pair]) {
      group[pair] = static_cast<std::uint8_t>(groups.size());
      groups.emplace_back();
    }
    if (mark.text.size() > 2) {
      const bool after = mark.offset + 2u < mark.text.size();
      mark.beside = after ? 2 : -1;
      mark.character = lower(mark.text[mark.offset + mark.beside]);
    }
    groups[group[pair]].push_back(mark);
    filter.add(static_cast<std::uint8_t>(first), static_cast<std::uint8_t>(second));
  }

  void add_any_case(char first, char second, Mark mark) {
    const auto upper = [](char c) { return static_cast<char>(c & ~0x20); };
    for (char a : {first, upper(first)})
      for (char b : {second, upper(second)}) add(a, b, mark);
  }

  Marks() {
    for (std::uint8_t i = 0; i < std::size(kPrefixes); ++i) {
      const Prefix& key = kPrefixes[i];
      add(key.prefix[key.pair], key.prefix[key.pair + 1], {Mark::kPrefixMark, i, key.pair, key.prefix});
    }
    for (std::uint8_t i = 0; i < std::size(kNames); ++i) {
      const auto [name, pair] = kNames[i];
      add_any_case(name[pair], name[pair + 1], {Mark::kNameMark, i, pair, name});
    }
    for (std::uint8_t i = 0; i < std::size(kParameters); ++i)
      for (char before : {'?', '&', ';'}) add(before, kParameters[i][0], {Mark::kParameter, i, 0, {}});
    for (std::uint8_t i = 0; i < std::size(kCommands); ++i) {
      const auto [name, sign, pair] = kCommands[i];
      add(name[pair], name[pair + 1], {Mark::kCommandMark, i, pair, name});
    }
    add(':', 'A', {Mark::kTelegram, 0, 0, ":AA"});
    add('y', 'J', {Mark::kJwt, 0, 1, "eyJ"});
    add_any_case('b', 'e', {Mark::kBearer, 0, 0, "bearer"});
    add('/', '/', {Mark::kUrlMark, 0, 1, "://"});
    add('-', 'B', {Mark::kPemMark, 0, 4, "-----BEGIN"});
    add('\\', '/', {Mark::kEscape, 0, 0, {}});
    add('\\', 'u', {Mark::kEscape, 0, 0, "\\u0"});
  }
};

const Marks kMarks;

}  // namespace
