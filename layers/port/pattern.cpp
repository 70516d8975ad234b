#include <sluice/layers/port/pattern.h>

#include <sluice/core/error.h>

#include <algorithm>
#include <cctype>
#include <limits>

namespace sluice::detail {

namespace {

constexpr std::size_t kNoEnd = std::numeric_limits<std::size_t>::max();
constexpr int kDeepest = 20;
constexpr std::size_t kMostSteps = 10'000, kMostSets = 200;
constexpr int64_t kSteps = 1000;  // for each byte of a text, and as many more; families take fewer than ten

/// The simple case folding of ASCII letters and of the two characters that fold to some.
char32_t folded(char32_t c) { return c >= 'A' && c <= 'Z' ? c + 32 : c == 0x17f ? 's' : c == 0x212a ? 'k' : c; }

}  // namespace

/// Reads the expression into branches of items, and links these from the end, so that each step knows the next one.
class PatternParser {
 public:
  PatternParser(Pattern& to, const std::string& text) : to_(to), text_(text) {
    const Branches all = branches(false, 0);
    if (at_ < text_.size()) unsupported("an unmatched )");
    const std::vector<std::size_t> first = link(all, 0);
    to_.start_ = first.size() == 1 ? first[0] : add({.kind = Kind::choice, .branches = first});
  }

 private:
  using Kind = Pattern::Kind;
  struct Item;
  using Branches = std::vector<std::vector<Item>>;
  struct Item {
    Pattern::Step step;
    Branches group = {};  // of choice and lookahead
    bool optional = false;
  };

  [[noreturn]] void unsupported(const std::string& what) const {
    fail<ValueError>(what, " is not supported — at byte ", at_, " of the pattern ", shortened(text_, 400));
  }
  bool sees(std::string_view s) const { return std::string_view(text_).substr(at_, s.size()) == s; }
  bool takes(std::string_view s) { return sees(s) && (at_ += s.size(), true); }
  char32_t take_char() {
    if (at_ == text_.size()) unsupported("an end within a set or escape");
    const char *const begin = text_.data() + at_, *p = begin;
    const char32_t c = next_char(p);
    at_ += static_cast<std::size_t>(p - begin);
    return c;
  }

  std::size_t add(Pattern::Step step) {
    if (to_.steps_.size() >= kMostSteps) unsupported("more than 10,000 steps");  // match() may call itself for each
    return to_.steps_.push_back(std::move(step)), to_.steps_.size() - 1;
  }
  std::vector<std::size_t> link(const Branches& branches, std::size_t next) {
    std::vector<std::size_t> first;
    for (const std::vector<Item>& items : branches) {
      std::size_t at = next;
      for (auto item = items.rbegin(); item != items.rend(); ++item) {
        Pattern::Step step = item->step;
        if (step.kind == Kind::choice) step.branches = link(item->group, at);
        else if (!item->group.empty()) step.branches = link(item->group, 0);
        if (item->optional) step.branches.push_back(at);
        step.next = at;
        at = add(std::move(step));
      }
      first.push_back(at);
    }
    return first;
  }

  Branches branches(bool fold, int depth) {
    if (depth > kDeepest) unsupported("so deep a nesting");
    Branches all(1);
    while (at_ < text_.size() && !sees(")")) {
      if (takes("|")) all.emplace_back();
      else all.back().push_back(item(fold, depth));
    }
    return all;
  }

  Item item(bool fold, int depth) {
    Item i;
    if (takes("(")) {
      i.step.kind = takes("?=") ? Kind::ahead : takes("?!") ? Kind::not_ahead : Kind::choice;
      if (takes("?i:")) fold = true;
      else if (!takes("?:") && sees("?")) unsupported(str("(", text_.substr(at_, 2)));
      i.group = branches(fold, depth + 1);
      if (!takes(")")) unsupported("a ( without )");
      if (i.step.kind == Kind::choice) i.optional = takes("?");
    } else if (takes("$")) {
      i.step.kind = Kind::line_end;
    } else if (takes("[")) {
      use_set(i.step, *set(fold, depth));
    } else if (sees("\\")) {
      const auto members = std::make_unique<CharSet>();
      if (const char32_t c = escape(*members); c != kNotOne) i.step = {.kind = Kind::one_char, .c = c, .fold = fold};
      else use_set(i.step, *members);
    } else {
      if (text_.find_first_of(".^*+?{", at_) == at_) unsupported(str("\"", text_[at_], "\""));
      i.step = {.kind = Kind::one_char, .c = take_char(), .fold = fold};
    }
    if (i.step.kind == Kind::one_char && fold) {
      if (i.step.c > 0x7f) unsupported("(?i:…) of a character beyond ASCII");
      i.step.c = folded(i.step.c);
    }
    if (i.step.kind == Kind::one_char || i.step.kind == Kind::one_of_set) repeat(i.step);
    if (at_ < text_.size() && text_.find_first_of("?*+{", at_) == at_) unsupported("a repeat of a group or repeat");
    return i;
  }

  void repeat(Pattern::Step& step) {
    if (takes("?")) step.least = 0;
    else if (takes("*")) step.least = 0, step.most = kNoEnd;
    else if (takes("+")) step.most = kNoEnd;
    else if (takes("{")) {
      step.least = sees(",") ? 0 : number();
      step.most = !takes(",") ? step.least : sees("}") ? kNoEnd : number();
      if (!takes("}") || step.least > step.most) unsupported("such a {n,m}");
      return;
    } else {
      return;
    }
    step.possessive = takes("+");
  }
  std::size_t number(int base = 10) {
    std::size_t n = 0, digits = 0;
    for (; at_ < text_.size() && std::isxdigit(static_cast<unsigned char>(text_[at_])) && digits < 7; ++at_, ++digits) {
      const int c = text_[at_], digit = c <= '9' ? c - '0' : (c | 32) - 'a' + 10;
      if (digit >= base) break;
      n = n * static_cast<std::size_t>(base) + static_cast<std::size_t>(digit);
    }
    if (!digits) unsupported("what stands here for a number");
    return n;
  }

  /// The same set serves all steps that have it.
  void use_set(Pattern::Step& step, const CharSet& members) {
    step.kind = Kind::one_of_set;
    auto it = std::find_if(sets_.begin(), sets_.end(), [&](const auto& s) { return *s == members; });
    if (it == sets_.end()) {
      if (sets_.size() >= kMostSets) unsupported("more than 200 different sets of characters");  // 136 kB each
      it = sets_.insert(it, std::make_shared<CharSet>(members));
    }
    step.set = *it;
  }

  /// Behind "[": the set up to its "]".
  std::unique_ptr<CharSet> set(bool fold, int depth) {
    if (depth > kDeepest) unsupported("so deep a nesting");
    const bool negated = takes("^");
    auto all = std::make_unique<CharSet>(), some = std::make_unique<CharSet>();
    all->set();
    if (sees("]") || sees(":")) unsupported(str("[", text_[at_]));
    while (!takes("]")) {
      if (takes("&&")) {
        *all &= *some;
        some->reset();
      } else if (takes("[")) {
        *some |= *set(fold, depth + 1);
      } else {
        const char32_t low = sees("\\") ? escape(*some) : take_char();
        char32_t high = low;
        if (low == kNotOne) continue;
        if (sees("-") && !sees("-]") && takes("-")) high = sees("\\") ? escape(*some) : take_char();
        if (high == kNotOne || high < low) unsupported("such a range");
        for (char32_t c = low; c <= high; ++c) some->set(c);
      }
    }
    if (fold) {
      if ((*some >> 128).any()) unsupported("(?i:…) of a set beyond ASCII");
      for (std::size_t c = 'a'; c <= 'z'; ++c)
        if (some->test(c) || some->test(c - 32)) some->set(c).set(c - 32);
      if (some->test('s')) some->set(0x17f);
      if (some->test('k')) some->set(0x212a);
    }
    *all &= *some;
    if (negated) all->flip();
    return all;
  }

  static constexpr char32_t kNotOne = 0x110000;
  /// A character, or kNotOne and its members added to `set`.
  char32_t escape(CharSet& set) {
    takes("\\");
    const std::size_t begin = at_;
    const char32_t c = take_char();
    std::string name;
    bool negated = c == 'P' || c == 'S' || c == 'D';
    switch (c) {
      case 'r': return '\r';
      case 'n': return '\n';
      case 't': return '\t';
      case 'x': {
        const bool braces = takes("{");
        const std::size_t code = number(16);
        if ((braces && !takes("}")) || (!braces && at_ - begin != 3) || code > 0x10ffff) unsupported("such a \\x");
        return static_cast<char32_t>(code);
      }
      case 's':
      case 'S': name = "White_Space"; break;
      case 'd':
      case 'D': name = "Nd"; break;
      case 'p':
      case 'P': {
        const std::size_t close = text_.find('}', at_);
        if (!takes("{") || close == std::string::npos) unsupported("\\p without {…}");
        negated ^= takes("^");
        name = text_.substr(at_, close - at_);
        at_ = close + 1;
        break;
      }
      default:
        if (c < 0x80 && std::isalnum(static_cast<int>(c))) unsupported(str("\\", text_.substr(begin, 1)));
        return c;
    }
    auto members = std::make_unique<CharSet>();
    if (!add_property(*members, name)) unsupported(str("\\p{", name, "}"));
    set |= negated ? members->flip() : *members;
    return kNotOne;
  }

  Pattern& to_;
  const std::string& text_;
  std::size_t at_ = 0;
  std::vector<std::shared_ptr<CharSet>> sets_;
};

Pattern::Pattern(const std::string& expression) { PatternParser(*this, expression); }

Pattern Pattern::literal(const std::string& text) {
  Pattern pattern;
  for (const char *p = text.data(), *end = p + text.size(); p != end;)
    pattern.steps_.push_back({.kind = Kind::one_char, .c = next_char(p), .next = pattern.steps_.size() + 1});
  if (text.empty()) fail<ValueError>("an empty text is no pattern");
  pattern.steps_.back().next = 0;
  pattern.start_ = 1;
  return pattern;
}

const char* Pattern::match(std::size_t at, const char* p, const char* end, int64_t& budget) const {
  if (--budget < 0) fail<ValueError>("a regular expression of the tokenizer takes too long");
  for (;;) {
    const Step& step = steps_[at];
    const auto in_step = [&](const char*& q) {  // moves q if its character is the step's
      const char* const before = q;
      const char32_t c = next_char(q);
      if (step.set ? step.set->test(c) : (step.fold ? folded(c) : c) == step.c) return true;
      return q = before, false;
    };
    switch (step.kind) {
      case Kind::accept: return p;
      case Kind::line_end:
        if (p != end && *p != '\n') return nullptr;
        break;
      case Kind::ahead:
      case Kind::not_ahead: {
        bool found = false;
        for (std::size_t i = 0; i < step.branches.size() && !found; ++i)
          found = match(step.branches[i], p, end, budget);
        if (found != (step.kind == Kind::ahead)) return nullptr;
        break;
      }
      case Kind::choice:
        for (std::size_t i = 0; i + 1 < step.branches.size(); ++i)
          if (const char* stop = match(step.branches[i], p, end, budget)) return stop;
        at = step.branches.back();
        continue;
      case Kind::one_char:
      case Kind::one_of_set: {
        std::size_t n = 0;
        while (n < step.most && p != end && in_step(p)) ++n;
        budget -= static_cast<int64_t>(n);
        if (n < step.least) return nullptr;
        for (; !step.possessive && n > step.least; --n) {
          if (const char* stop = match(step.next, p, end, budget)) return stop;
          do --p;
          while (goes_on(*p));
        }
        break;
      }
    }
    at = step.next;
  }
}

int64_t Pattern::budget(std::string_view text) { return kSteps * (static_cast<int64_t>(text.size()) + kSteps); }

std::pair<std::size_t, std::size_t> Pattern::find(std::string_view text, std::size_t from, int64_t& budget) const {
  const char *const begin = text.data(), *const end = begin + text.size();
  for (const char* p = begin + from;; next_char(p)) {
    if (const char* stop = match(start_, p, end, budget)) return {p - begin, stop - begin};
    if (p == end) return {std::string::npos, std::string::npos};
  }
}

}  // namespace sluice::detail
