// The regular expressions of tokenizer.json, over UTF-8: those that split a text before byte-pair encoding.
//
// Written here because std::regex knows no Unicode, and because PCRE2, which a user would have to install, reads
// Oniguruma's `&&` within brackets and repeated {n,m} differently.
#pragma once

#include <sluice/layers/port/unicode.h>

#include <memory>
#include <utility>
#include <vector>

namespace sluice::detail {

/// A compiled regular expression in Oniguruma's syntax. It has literals, \p{…}, \s, \d, \r, \n, \t, \x{…}, sets with
/// ranges, nested sets and &&, groups, (?i:…) of ASCII letters, lookahead, `$`, `|`, greedy ? * + {n,m} of one
/// character, possessive ?+ *+ ++, and `?` of a group. Matches are those of a backtracking matcher: the first
/// alternative wins. Its stack is bounded by the length of the expression, not of the text.
class Pattern {
 public:
  /// Throws ValueError naming the construct that is not one of these.
  explicit Pattern(const std::string& expression);
  /// The pattern that matches `text`, which must not be empty.
  static Pattern literal(const std::string& text);

  /// Steps that finding all matches of a text may take: a thousand for each byte.
  static int64_t budget(std::string_view text);
  /// The first match at or behind `from` in valid UTF-8: its begin and end, or npos twice if there is none. Takes its
  /// steps from `budget`; ValueError if they do not suffice.
  std::pair<std::size_t, std::size_t> find(std::string_view text, std::size_t from, int64_t& budget) const;

 private:
  friend class PatternParser;
  enum class Kind { accept, one_char, one_of_set, choice, ahead, not_ahead, line_end };
  struct Step {
    Kind kind = Kind::accept;
    char32_t c = 0;                     // of one_char
    bool fold = false;                  // of one_char: in either case
    std::shared_ptr<CharSet> set = {};  // of one_of_set
    std::size_t least = 1, most = 1;    // repeats of one_char and one_of_set
    bool possessive = false;
    std::vector<std::size_t> branches = {};  // of choice, ahead and not_ahead: their first steps
    std::size_t next = 0;
  };
  Pattern() = default;
  const char* match(std::size_t step, const char* p, const char* end, int64_t& budget) const;

  std::vector<Step> steps_{Step{}};  // the first one accepts
  std::size_t start_ = 0;
};

}  // namespace sluice::detail
