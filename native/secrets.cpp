// Finds where a text holds what looks like a secret, or personal data, in one pass over its UTF-8 bytes.
//
// Recording redacts every experience before it is written, so a text that holds nothing must cost next to nothing:
// a table tells for each two neighbouring bytes whether any of the marks below may be there (about half a nanosecond a
// byte). Only then are the surroundings looked at, and every look is bounded, so that no text takes more
// than linear time. What a find means, how far a password reaches and what it is replaced by is the business of
// relive/storage/redaction.py.

#include <nanobind/nanobind.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace nb = nanobind;

namespace {

using Text = std::string_view;

// What was found. Numbers are shared with redaction.py.
enum Rule : std::uint8_t {
  kKey = 0,    // a provider's key: the whole of it
  kToken = 1,  // a JSON web token, or what follows "Bearer": the whole of it
  kName = 2,   // the name of a secret ("password") with a value beside it: the name
  kQuery = 3,  // a query parameter of a URL that often carries one ("?key="): the name
  kUrl = 4,    // user and password in a URL: from "://" to before "@"
  kPem = 5,    // the beginning of a private key's block: its first line
  kEmail = 6,
  kCard = 7,
  kPhone = 8,
};

enum Search : unsigned { kSecrets = 1, kEmails = 2, kCards = 4, kPhones = 8 };

struct Find {
  std::size_t start, end;
  Rule rule;
};

constexpr std::size_t kMostSpaces = 64;  // between a name and its value

enum Class : std::uint16_t {
  kUpper = 1,
  kLower = 2,
  kDigit = 4,
  kDash = 8,  // - and _
  kSpace = 16,
  kQuote = 32,
  kCredential = 64,  // what keys and tokens are made of, besides the above
  kHigh = 128,       // part of a character outside ASCII
  kOther = 256,      // any other printable character
};
constexpr unsigned kAlnum = kUpper | kLower | kDigit, kWord = kAlnum | kDash;
constexpr unsigned kVisible = kWord | kCredential | kHigh | kOther;  // neither space, quote nor control character

std::array<std::uint16_t, 256> make_classes() {
  std::array<std::uint16_t, 256> classes{};
  for (int c = 'A'; c <= 'Z'; ++c) classes[c] = kUpper;
  for (int c = 'a'; c <= 'z'; ++c) classes[c] = kLower;
  for (int c = '0'; c <= '9'; ++c) classes[c] = kDigit;
  classes['-'] = classes['_'] = kDash;
  for (unsigned char c : {' ', '\t', '\n', '\r'}) classes[c] = kSpace;
  for (unsigned char c : {'"', '\'', '`'}) classes[c] = kQuote;
  for (char c : Text("!#$&()*,:;<>?@[\\]^{}")) classes[static_cast<std::uint8_t>(c)] = kOther;
  for (unsigned char c : {'.', '/', '+', '=', '~', '%', '|'}) classes[c] = kCredential;
  for (int c = 128; c < 256; ++c) classes[c] = kHigh;
  return classes;
}

const std::array<std::uint16_t, 256> kClasses = make_classes();

bool is(char c, unsigned classes) { return kClasses[static_cast<std::uint8_t>(c)] & classes; }

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c; }

bool starts_with(Text text, std::size_t at, Text what) { return text.substr(std::min(at, text.size()), what.size()) == what; }

bool ends_with_name(Text text, std::size_t end, Text what) {  // letters in either case
  if (end < what.size()) return false;
  for (std::size_t i = 0; i < what.size(); ++i)
    if (lower(text[end - what.size() + i]) != what[i]) return false;
  return true;
}

std::size_t run(Text text, std::size_t at, unsigned classes, std::size_t most) {
  std::size_t end = at;
  const std::size_t limit = std::min(text.size(), at + most);
  while (end < limit && is(text[end], classes)) ++end;
  return end;
}

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

const Text kHeaders[] = {"authorization", "cookie", "x-api-key", "api-key", "x-auth-token", "x-goog-api-key"};

struct Marks {
  std::array<std::uint8_t, 65536> group{};  // for each two bytes: which of `groups` looks further; 0: none
  struct Mark {
    enum Kind : std::uint8_t { kPrefixMark, kNameMark, kJwt, kBearer, kUrlMark, kPemMark, kParameter, kEscape } kind;
    std::uint8_t index, offset;
    Text text;  // what stands there; only its character beside the pair is looked at, which ends most looks at once
    std::int8_t beside = 0;
    char character = 0;
  };
  std::vector<std::vector<Mark>> groups{{}};

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
    add('y', 'J', {Mark::kJwt, 0, 1, "eyJ"});
    add_any_case('b', 'e', {Mark::kBearer, 0, 0, "bearer"});
    add('/', '/', {Mark::kUrlMark, 0, 1, "://"});
    add('-', 'B', {Mark::kPemMark, 0, 4, "-----BEGIN"});
    add('\\', '/', {Mark::kEscape, 0, 0, {}});
    add('\\', 'u', {Mark::kEscape, 0, 0, "\\u0"});
  }
};

const Marks kMarks;

// Whether a key may begin here: no letter, digit or dash before it, save the tail of an escape (\n, \u003d, %3D).
bool begins(Text text, std::size_t at) {
  if (at == 0 || !is(text[at - 1], kWord)) return true;
  if (at >= 2 && text[at - 2] == '\\') return std::memchr("nrtbf", text[at - 1], 5) != nullptr;
  if (at >= 6 && text[at - 6] == '\\' && text[at - 5] == 'u') return true;
  return at >= 3 && text[at - 3] == '%';
}

constexpr std::size_t kMostBackslashes = 1024;  // before a quote in JSON inside text: 2^level - 1

std::size_t skip_backslashes(Text text, std::size_t at) {
  const std::size_t limit = std::min(text.size(), at + kMostBackslashes);
  while (at < limit && text[at] == '\\') ++at;
  return at;
}

// Skips what may stand behind a name: quotes, each with the backslashes of JSON inside text.
std::size_t skip_quotes(Text text, std::size_t at) {
  for (int i = 0; i < 4; ++i) {
    const std::size_t quote = skip_backslashes(text, at);
    if (quote >= text.size() || !is(text[quote], kQuote)) break;
    at = quote + 1;
  }
  return at;
}

// Skips spaces and line ends, written as themselves or as JSON escapes.
std::size_t skip_spaces(Text text, std::size_t at, std::size_t most) {
  for (std::size_t i = 0; i < most && at < text.size(); ++i) {
    if (is(text[at], kSpace)) {
      ++at;
      continue;
    }
    const std::size_t letter = skip_backslashes(text, at);
    if (letter == at || letter >= text.size() || std::memchr("nrt", text[letter], 3) == nullptr) break;
    at = letter + 1;
  }
  return at;
}

bool looks_mixed(Text text) {
  int digits = 0;
  for (char c : text) {
    if (is(c, kUpper)) return true;
    digits += is(c, kDigit);
  }
  return digits >= 3;
}

// Long and of more than one sort of character, as no word is.
bool looks_random(Text text) {
  bool digit = false, small = false, capital = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    digit |= is(text[i], kDigit);
    small |= is(text[i], kLower);
    capital |= i > 0 && is(text[i], kUpper);
  }
  return digit || (small && capital);
}

bool find_prefix(Text text, std::size_t start, const Prefix& key, Find& find) {
  if (!starts_with(text, start, key.prefix) || !begins(text, start)) return false;
  if (key.prefix == "AIza" && start && (text[start - 1] == '/' || text[start - 1] == '+')) {
    std::size_t before = start;  // inside Base64, of which any four letters may be part?
    while (before && start - before < 16 && is(text[before - 1], kAlnum | kCredential)) --before;
    if (start - before == 16 && run(text, start, kAlnum, 64) - start > 39) return false;
  }
  const std::size_t tail = start + key.prefix.size();
  const std::size_t end = run(text, tail, key.tail, 4096);
  const std::size_t length = end - tail;
  if (length < key.minimum || (key.exact && length != key.minimum)) return false;
  if (key.exact && end < text.size() && is(text[end], kWord)) return false;
  if (key.mixed && !looks_mixed(text.substr(tail, length))) return false;
  find = {start, end, kKey};
  return true;
}

bool find_jwt(Text text, std::size_t start, Find& find) {
  if (!starts_with(text, start, "eyJ") || !begins(text, start)) return false;
  std::size_t end = run(text, start, kWord, 65536);
  if (end - start < 12 || end >= text.size() || text[end] != '.') return false;
  const std::size_t claims = end + 1;
  end = run(text, claims, kWord, 65536);
  if (end - claims < 4 || end >= text.size() || text[end] != '.') return false;
  for (int part = 0; part < 3 && end < text.size() && text[end] == '.'; ++part) end = run(text, end + 1, kWord, 65536);
  find = {start, end, kToken};
  return true;
}

bool find_bearer(Text text, std::size_t start, Find& find) {
  if (!ends_with_name(text, start + 6, "bearer") || start + 7 >= text.size()) return false;
  std::size_t at = start + 6;
  if (starts_with(text, at, "%20")) at += 3;
  else if (text[at] == '+') ++at;
  else at = skip_spaces(text, at, 4);
  if (at == start + 6) return false;
  std::size_t end = run(text, at, kWord | kCredential, 16384);
  while (end > at && (text[end - 1] == '.' || text[end - 1] == '|')) --end;  // the end of a sentence
  if (end - at < 12 || !looks_random(text.substr(at, end - at))) return false;
  find = {at, end, kToken};
  return true;
}

bool find_url(Text text, std::size_t slashes, Find& find) {
  if (slashes == 0) return false;
  std::size_t scheme = slashes;
  if (text[scheme - 1] != ':' || scheme < 2 || !is(text[scheme - 2], kAlnum)) return false;
  const std::size_t start = slashes + 2, limit = std::min(text.size(), start + 512);
  std::size_t at_sign = 0, colon = 0;
  for (std::size_t i = start; i < limit; ++i) {
    const char c = text[i];
    if (c == '@') at_sign = i;
    if (c == ':' && !colon && !at_sign) colon = i;
    if (!is(c, kVisible) || c == '/' || c == '\\' || c == '<' || c == '>' || c == '?' || c == '#') break;
  }
  if (!at_sign) return false;
  const bool password = colon && colon + 1 < at_sign;
  const bool token = !colon && at_sign - start >= 20;  // https://TOKEN@host
  if (!password && !token) return false;
  const std::size_t secret = password ? colon + 1 : start;
  if (starts_with(text, secret, "[redacted:")) return false;
  find = {secret, at_sign, kUrl};
  return true;
}

bool find_pem(Text text, std::size_t start, Find& find) {
  if (!starts_with(text, start, "-----BEGIN ")) return false;
  const Text line = text.substr(start, 64);
  if (line.find("PRIVATE KEY") == Text::npos) return false;
  find = {start, start + 11, kPem};
  return true;
}

bool is_nothing(Text text, std::size_t at) {
  for (Text nothing : {Text("null"), Text("None"), Text("true"), Text("True"), Text("false"), Text("False")})
    if (starts_with(text, at, nothing)) return at + nothing.size() >= text.size() || !is(text[at + nothing.size()], kWord);
  return false;
}

bool value_follows(Text text, std::size_t at, bool cookie, std::size_t least) {
  at = skip_spaces(text, at, kMostSpaces);
  const std::size_t quote = skip_backslashes(text, at);
  const bool quoted = quote < text.size() && is(text[quote], kQuote);
  if (quoted) at = quote + 1;
  if (at >= text.size() || (quoted && text[at] == text[quote]) || starts_with(text, at, "[redacted:")) return false;
  if (!quoted && (std::memchr(",;}])&", text[at], 6) != nullptr || is_nothing(text, at))) return false;
  if (!quoted && (text[at] == '{' || text[at] == '[')) return cookie || text[at] == '[';
  for (std::size_t i = 0; i < least; ++i) {
    if (at + i >= text.size() || !is(text[at + i], kVisible | kQuote)) return false;
    if (is(text[at + i], kQuote) && (!quoted || text[at + i] == text[quote])) return false;
    if (quoted && text[at + i] == '\\') return true;  // an escape: the value may well hold quotes
  }
  return true;
}

bool is_header(Text text, std::size_t start, std::size_t end) {
  for (Text header : kHeaders)
    if (end - start >= header.size() && ends_with_name(text, end, header)) return true;
  return false;
}

// Whether a name stands with a value: `name: value`, `"name": "value"`, `name=value`, `--name value`, `name is value`,
// or as a value itself, beside which the secret stands: `{"name": "x-api-key", "value": …}`, `["cookie", …]`.
bool find_name(Text text, std::size_t start, std::size_t index, Find& find) {
  const Text name = kNames[index].name;
  std::size_t end = start + name.size();
  if (end > text.size() || !ends_with_name(text, end, name)) return false;
  if (name == "key") {
    std::size_t before = start;
    if (before && (is(text[before - 1], kDash) || text[before - 1] == ' ' || text[before - 1] == '.')) --before;
    const auto stands = [&](Text word) { return ends_with_name(text, before, word); };
    if (std::none_of(std::begin(kKeys), std::end(kKeys), stands)) return false;
  }
  const std::size_t whole = end;
  if (end < text.size() && (text[end] == 's' || text[end] == 'S' || is(text[end], kDigit))) ++end;
  if (end >= text.size()) return false;
  find = {start, whole, kName};
  const bool cookie = name == "cookie";
  const std::size_t least = name == "token" ? 8 : 0;
  if (is(text[end], kWord)) return false;

  std::size_t at = skip_quotes(text, end);
  const bool quoted = at > end;
  if (quoted && at < text.size() && text[at] == ']') ++at;  // environ["PASSWORD"] = …
  const std::size_t gap = at;
  at = skip_spaces(text, at, kMostSpaces);
  if (at >= text.size()) return false;
  if (text[at] == ':' || text[at] == '=') {
    at += 1;
    while (at < text.size() && (text[at] == '=' || text[at] == '>')) ++at;
    return value_follows(text, at, cookie, least);
  }
  if (starts_with(text, at, "%3D") || starts_with(text, at, "%3d")) return value_follows(text, at + 3, cookie, least);
  if (quoted) {  // is the name itself a value?
    const auto skip_back = [&](std::size_t left, auto skipped, std::size_t most) {
      for (std::size_t i = 0; i < most && left && skipped(text[left - 1]); ++i) --left;
      return left;
    };
    std::size_t left = skip_back(start, [](char c) { return is(c, kWord) || c == ' ' || c == '.'; }, 64);
    const bool header = is_header(text, left, end);
    left = skip_back(left, [](char c) { return c == '\\' || is(c, kQuote); }, kMostBackslashes);
    left = skip_back(left, [](char c) { return is(c, kSpace); }, kMostSpaces);
    const char before = left ? text[left - 1] : '\0';
    return before == ':' || (header && (before == '[' || before == ',' || is(before, kAlnum)));
  }
  if (gap == at) return false;
  std::size_t left = start;  // --password value
  const std::size_t limit = start > 40 ? start - 40 : 0;
  while (left > limit && is(text[left - 1], kWord)) --left;
  if (starts_with(text, left, "--")) return text[at] != '-' && value_follows(text, at, false, least);
  for (Text is_word : {Text("is:"), Text("is"), Text("was")})  // my password is …
    if (starts_with(text, at, is_word)) {
      const std::size_t word = at + is_word.size();
      at = skip_spaces(text, word, 4);
      if (at == word) return false;
      at = skip_quotes(text, at);
      const std::size_t stop = run(text, at, kVisible, 64);
      std::size_t digits = 0;
      for (std::size_t i = at; i < stop; ++i) digits += is(text[i], kDigit);
      return digits && stop - at >= 6;
    }
  return false;
}

bool find_parameter(Text text, std::size_t before, Text name, Find& find) {
  if (!starts_with(text, before + 1, name)) return false;
  const std::size_t end = before + 1 + name.size();
  if (end >= text.size() || text[end] != '=') return false;
  if (run(text, end + 1, kWord | kCredential, 12) - end - 1 < 12) return false;
  find = {before + 1, end, kQuery};
  return true;
}

// An escape that stands for a plain character (\/, \u003d) may hide a mark: whoever asks decodes the JSON and looks again.
bool find_escape(Text text, std::size_t at, Find& find) {
  find = {at, at + 2, kQuery};
  if (text[at + 1] == '/') return true;
  return at + 4 < text.size() && text[at + 2] == '0' && text[at + 3] == '0' && text[at + 4] >= '2' && text[at + 4] <= '7';
}

bool find_at(Text text, std::size_t at, const Marks::Mark& mark, bool encoded, Find& find) {
  if (at < mark.offset) return false;
  const std::size_t start = at - mark.offset;
  switch (mark.kind) {
    case Marks::Mark::kPrefixMark: return find_prefix(text, start, kPrefixes[mark.index], find);
    case Marks::Mark::kNameMark: return find_name(text, start, mark.index, find);
    case Marks::Mark::kJwt: return find_jwt(text, start, find);
    case Marks::Mark::kBearer: return find_bearer(text, start, find);
    case Marks::Mark::kUrlMark: return find_url(text, at, find);
    case Marks::Mark::kPemMark: return find_pem(text, start, find);
    case Marks::Mark::kParameter: return find_parameter(text, start, kParameters[mark.index], find);
    case Marks::Mark::kEscape: return encoded && find_escape(text, start, find);
  }
  return false;
}

// Calls `report(find)` for what is found, until it says false.
template <class Report>
void find_secrets(Text text, bool encoded, Report report) {
  if (text.size() < 2) return;
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(text.data());
  const std::uint8_t* group = kMarks.group.data();
  const auto group_at = [&](std::size_t i) { return group[bytes[i] | unsigned{bytes[i + 1]} << 8]; };
  const std::size_t last = text.size() - 1;
  const auto look = [&](std::size_t at) {
    Find find;
    for (const auto& mark : kMarks.groups[group_at(at)]) {
      const std::size_t beside = at + static_cast<std::size_t>(mark.beside);
      if (mark.beside && (beside >= text.size() || lower(text[beside]) != mark.character)) continue;
      if (find_at(text, at, mark, encoded, find) && !report(find)) return false;
    }
    return true;
  };
  constexpr std::size_t kStep = 8;
  std::size_t at = 0;
  for (; at + kStep <= last; at += kStep) {  // one branch for eight positions: few of them are marked
    std::uint64_t marked = 0;
    for (std::size_t i = 0; i < kStep; ++i) marked |= std::uint64_t{group_at(at + i)} << 8 * i;
    while (marked) {
      const auto i = static_cast<unsigned>(__builtin_ctzll(marked)) / 8;
      if (!look(at + i)) return;
      marked &= ~(std::uint64_t{255} << 8 * i);
    }
  }
  for (; at < last; ++at)
    if (!look(at)) return;
}

template <class Report>
void find_emails(Text text, Report report) {
  for (std::size_t at = text.find('@'); at != Text::npos; at = text.find('@', at + 1)) {
    const auto part_of_name = [](char c) { return is(c, kWord | kHigh) || std::memchr(".%+", c, 3) != nullptr; };
    std::size_t start = at;
    while (start && at - start < 64 && part_of_name(text[start - 1])) --start;
    // The n of an escape \n before the name belongs to the escape.
    if (start < at && start && text[start - 1] == '\\' && std::memchr("nrtbf", text[start], 5)) ++start;
    std::size_t end = run(text, at + 1, kAlnum | kHigh, 1);
    if (start == at || end == at + 1) continue;
    while (end < text.size() && end - at < 255 && (is(text[end], kAlnum | kHigh) || text[end] == '-' || text[end] == '.')) ++end;
    while (!is(text[end - 1], kAlnum | kHigh)) --end;
    const std::size_t dot = text.substr(at, end - at).rfind('.');
    if (dot == Text::npos || at + dot + 2 >= end || is(text[at + dot + 1], kDigit)) continue;
    if (!report(Find{start, end, kEmail})) return;
  }
}

bool passes_luhn(const char* digits, int count) {  // ISO/IEC 7812-1, annex B
  int sum = 0;
  for (int i = 0; i < count; ++i) {
    int digit = digits[count - 1 - i] - '0';
    if (i % 2) digit = digit * 2 - (digit > 4 ? 9 : 0);
    sum += digit;
  }
  return sum % 10 == 0;
}

// A number that an issuer of payment cards could have given: 3, 4, 5 or 6 first, 22–27 for one issuer's second range.
bool is_card(const char* digits, int count) {
  if (count < 13 || count > 19) return false;
  const int two = (digits[0] - '0') * 10 + digits[1] - '0';
  const bool issuer = (digits[0] == '4' && (count == 13 || count == 16 || count == 19)) ||
                      (count == 16 && ((two >= 51 && two <= 55) || (two >= 22 && two <= 27))) ||
                      (count == 15 && (two == 34 || two == 37)) || (count == 14 && (two == 36 || two == 38 || two == 30)) ||
                      (count >= 16 && (two == 60 || two == 62 || two == 64 || two == 65 || two == 35));
  return issuer && passes_luhn(digits, count);
}

// Digits that belong together: one space, dash, dot or bracket may stand between two of them.
template <class Report>
void find_numbers(Text text, unsigned search, Report report) {
  const std::size_t size = text.size();
  for (std::size_t at = 0; at < size;) {
    if (!is(text[at], kDigit)) {
      ++at;
      continue;
    }
    if (at >= 2 && text[at - 1] == 'u' && text[at - 2] == '\\') {  // the digits of an escape, \u0007
      at = std::min(size, at + 4);
      continue;
    }
    char digits[20];
    int count = 0, groups = 1, lengths[8] = {0};
    std::size_t end = at, last = at;
    bool only_space_or_dash = true;
    for (; end < size; ++end) {
      if (is(text[end], kDigit)) {
        if (count < 20) digits[count] = text[end];
        ++count;
        if (groups <= 8) ++lengths[groups - 1];
        last = end + 1;
      } else if (end + 1 < size && is(text[end + 1], kDigit) && std::memchr(" -.)", text[end], 4)) {
        only_space_or_dash &= text[end] == ' ' || text[end] == '-';
        ++groups;
      } else if (text[end] == ')' && end + 2 < size && text[end + 1] == ' ' && is(text[end + 2], kDigit)) {
        only_space_or_dash = false;
        ++end;
        ++groups;
      } else {
        break;
      }
    }
    const char before = at ? text[at - 1] : ' ', after = last < size ? text[last] : ' ';
    const bool alone = begins(text, at) && before != '.' && !is(after, kWord);
    Find find{at, last, kCard};
    bool found = (search & kCards) && alone && only_space_or_dash && groups <= 5 && is_card(digits, std::min(count, 20));
    if (!found && (search & kPhones) && !is(after, kWord)) {
      const bool international = before == '+' && count >= 8 && count <= 15 && begins(text, at - 1);
      const bool american = alone && groups == 3 && lengths[0] == 3 && lengths[1] == 3 && lengths[2] == 4;
      found = international || american;
      const std::size_t opening = before == '+' || (before == '(' && american) ? 1 : 0;
      find = {at - opening, last, kPhone};
    }
    if (found && !report(find)) return;
    at = last;
  }
}

template <class Report>
void find_all(Text text, unsigned search, bool encoded, Report report) {
  bool more = true;
  const auto one = [&](const Find& find) { return more = report(find); };
  if (search & kSecrets) find_secrets(text, encoded, one);
  if (more && search & kEmails) find_emails(text, one);
  if (more && search & (kCards | kPhones)) find_numbers(text, search, one);
}

Text text_of(nb::bytes data) { return {data.c_str(), data.size()}; }

bool suspicious(nb::bytes json, unsigned search) {
  bool found = false;
  find_all(text_of(json), search, true, [&](const Find&) { return !(found = true); });
  return found;
}

nb::list find(nb::bytes text, unsigned search) {
  std::vector<Find> finds;
  find_all(text_of(text), search, false, [&](const Find& find) { return finds.push_back(find), true; });
  std::stable_sort(finds.begin(), finds.end(), [](const Find& a, const Find& b) { return a.start < b.start; });
  nb::list result;
  for (const Find& f : finds) result.append(nb::make_tuple(f.start, f.end, static_cast<int>(f.rule)));
  return result;
}

}  // namespace

NB_MODULE(_secrets, m) {
  m.doc() = "Finds secrets and personal data in UTF-8 text; see relive.storage.redaction.";
  m.def("suspicious", &suspicious, nb::arg("json"), nb::arg("search"),
        "Whether JSON text may hold something to redact; never misses what `find` sees in its strings.");
  m.def("find", &find, nb::arg("text"), nb::arg("search"),
        "What the text may hold, as (start, end, rule) by start; bounds are byte positions.");
}
