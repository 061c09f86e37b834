// Finds where a text holds what looks like a secret, or personal data, in one pass over its UTF-8 bytes.
//
// Recording redacts every experience before it is written, so a text that holds nothing must cost next to nothing:
// each two neighbouring bytes tell whether any mark of a secret may be there (a quarter of a nanosecond a byte). Only then
// are the surroundings looked at, and every look is bounded, so that no text takes more than linear time. What a find means, how far a password reaches and what it is replaced by is the business of
// relive/storage/redaction.py.

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <vector>

#include "secrets_marks.h"
#include "secrets_text.h"

namespace nb = nanobind;

namespace {

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
  kCommand = 9,  // the name of a command that may have a password among what follows
};

enum Search : unsigned { kSecrets = 1, kEmails = 2, kCards = 4, kPhones = 8 };

struct Find {
  std::size_t start, end;
  Rule rule;
};

const Text kHeaders[] = {"authorization", "cookie", "x-api-key", "api-key", "x-auth-token", "x-goog-api-key"};

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

bool find_command(Text text, std::size_t start, const Command& command, Find& find) {
  if (!starts_with(text, start, command.name) || !begins(text, start)) return false;
  if (text.substr(start, 384).find(command.sign) == Text::npos) return false;
  find = {start, start + command.name.size(), kCommand};
  return true;
}

// A bot's token of Telegram: 8 to 10 digits, a colon, 35 characters.
bool find_telegram(Text text, std::size_t colon, Find& find) {
  std::size_t start = colon;
  while (start && colon - start < 11 && is(text[start - 1], kDigit)) --start;
  const std::size_t end = run(text, colon + 1, kWord, 64);
  if (colon - start < 8 || colon - start > 10 || end - colon - 1 != 35) return false;
  find = {start, end, kKey};
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
    case Marks::Mark::kCommandMark: return find_command(text, start, kCommands[mark.index], find);
    case Marks::Mark::kTelegram: return find_telegram(text, start, find);
    case Marks::Mark::kEscape: return encoded && find_escape(text, start, find);
  }
  return false;
}

#ifdef RELIVE_HAS_PAIR_FILTER
// Calls `look(at)` for the positions before `last` that the filter lets through, until it says false; returns up to where
// it came, or `last` if it was told to end.
template <class Look>
__attribute__((target("ssse3"))) std::size_t sift(const std::uint8_t* bytes, std::size_t last, Look look) {
  std::size_t at = 0;
  for (; at + 16 <= last; at += 16)
    for (unsigned marked = kMarks.filter.marked(bytes + at); marked; marked &= marked - 1)
      if (!look(at + static_cast<std::size_t>(__builtin_ctz(marked)))) return last;
  return at;
}
#endif

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
  std::size_t at = 0;
#ifdef RELIVE_HAS_PAIR_FILTER
  if (PairFilter::supported()) at = sift(bytes, last, look);
#endif
  for (; at < last; ++at)
    if (group_at(at) && !look(at)) return;
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

bool is_suspicious(Text json, unsigned search) {
  bool found = false;
  find_all(json, search, true, [&](const Find&) { return !(found = true); });
  return found;
}

bool suspicious(nb::bytes json, unsigned search) { return is_suspicious(text_of(json), search); }

bool suspicious_record(nb::bytes json, nb::tuple texts, nb::tuple tags, unsigned search) {
  if (is_suspicious(text_of(json), search)) return true;
  for (const nb::tuple& some : {texts, tags})
    for (nb::handle text : some) {
      if (!PyUnicode_Check(text.ptr())) continue;  // None, or what is refused later by name
      Py_ssize_t size = 0;
      const char* utf8 = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
      if (utf8 == nullptr) {  // half a surrogate pair: whoever asks looks closer
        PyErr_Clear();
        return true;
      }
      if (is_suspicious({utf8, static_cast<std::size_t>(size)}, search)) return true;
    }
  return false;
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
  nb::set_leak_warnings(false);  // what ends with the interpreter is no leak; nanobind would report it on stderr
  m.doc() = "Finds secrets and personal data in UTF-8 text; see relive.storage.redaction.";
  m.def("suspicious", &suspicious, nb::arg("json"), nb::arg("search"),
        "Whether JSON text may hold something to redact; never misses what `find` sees in its strings.");
  m.def("suspicious_record", &suspicious_record, nb::arg("json"), nb::arg("texts"), nb::arg("tags"), nb::arg("search"),
        "The same of JSON text and of some texts beside it; what is no text is passed over.");
  m.def("find", &find, nb::arg("text"), nb::arg("search"),
        "What the text may hold, as (start, end, rule) by start; bounds are byte positions.");
}
