// Bytes of a text and what they are: letters, spaces, escapes. All looks are bounded by the caller.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace {

using Text = std::string_view;

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

}  // namespace
