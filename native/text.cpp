// Cuts ASCII text into the tokens of the full-text index: relive/storage/text.py says what they are and does the same
// for any other text, forty times slower. Recording an experience should not wait for that.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "plain.h"

namespace nb = nanobind;

namespace {

using Text = std::string_view;

// The same as in text.py.
constexpr std::size_t kLongWord = 9;      // from here on a word may be a compound of two others
constexpr std::size_t kShortestPart = 4;
constexpr std::size_t kLongestToken = 64;
constexpr int kMostSymbols = 3;  // after a word, as in "c++"

bool is_letter(char c) { return c >= 'a' && c <= 'z'; }
bool is_word(char c) { return is_letter(c) || (c >= '0' && c <= '9'); }
bool is_symbol(char c) { return c == '+' || c == '#'; }
bool is_joint(char c) { return Text("-_/.:'@&+#").find(c) != Text::npos; }

void add(Text token, std::string& tokens) {
  if (!tokens.empty()) tokens += ' ';
  tokens += token;
}

// A word with symbols, these written as their full-width twins (U+FF01 to U+FF5E), which the index leaves alone.
void add_whole(Text word, std::string& tokens) {
  if (!tokens.empty()) tokens += ' ';
  for (char c : word) {
    if (is_word(c)) {
      tokens += c;
    } else {
      const unsigned code = static_cast<unsigned char>(c) + 0xFEE0u;
      tokens += static_cast<char>(0xE0 | (code >> 12));
      tokens += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
      tokens += static_cast<char>(0x80 | (code & 0x3F));
    }
  }
}

// A run of letters and digits, and, where it is long, its endings.
void add_part(Text part, std::string& tokens) {
  part = part.substr(0, kLongestToken);
  add(part, tokens);
  if (part.size() < kLongWord || !std::all_of(part.begin(), part.end(), is_letter)) return;
  for (std::size_t i = kShortestPart; i + kShortestPart <= part.size(); ++i) add(part.substr(i), tokens);
}

// Where the run of letters and digits ends that begins at `at`.
std::size_t run_end(Text text, std::size_t at) {
  while (at < text.size() && is_word(text[at])) ++at;
  return at;
}

std::string ascii_tokens(Text given) {
  std::string text(given);
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + ('a' - 'A'));
  }
  std::string tokens;
  tokens.reserve(2 * text.size());
  std::size_t at = 0;
  while (at < text.size()) {
    if (!is_word(text[at])) {
      ++at;
      continue;
    }
    const std::size_t start = at;
    at = run_end(text, at);
    const std::size_t first = at;
    while (at + 1 < text.size() && is_joint(text[at]) && is_word(text[at + 1])) at = run_end(text, at + 1);
    for (int i = 0; i < kMostSymbols && at < text.size() && is_symbol(text[at]); ++i) ++at;
    const Text word = Text(text).substr(start, at - start);
    if (at == first) {
      add_part(word, tokens);
      continue;
    }
    if (word.size() <= kLongestToken) add_whole(word, tokens);
    for (std::size_t i = 0; i < word.size();) {
      if (is_word(word[i])) {
        const std::size_t end = run_end(word, i);
        add_part(word.substr(i, end - i), tokens);
        i = end;
      } else {
        ++i;
      }
    }
  }
  return tokens;
}

std::optional<std::string> ascii_tokens_of(nb::str text) {
  if (!PyUnicode_IS_ASCII(text.ptr())) return std::nullopt;
  return ascii_tokens({static_cast<const char*>(PyUnicode_DATA(text.ptr())),
                       static_cast<std::size_t>(PyUnicode_GET_LENGTH(text.ptr()))});
}

}  // namespace

NB_MODULE(_text, m) {
  nb::set_leak_warnings(false);  // what ends with the interpreter is no leak; nanobind would report it on stderr
  m.doc() = "Tokens of ASCII text, see relive.storage.text; values that are plain JSON, see relive.storage.codec.";
  m.def("ascii_tokens", &ascii_tokens_of, nb::arg("text"),
        "The tokens of a text, joined by spaces; None: it is not ASCII.");
  m.def(
      "is_plain", [](nb::handle value, int levels) { return relive::is_plain(value.ptr(), levels); },
      nb::arg("value").none(), nb::arg("levels"),
      "True: made of None, text, numbers, and dicts, lists and tuples of such, at most so many levels deep.");
}
