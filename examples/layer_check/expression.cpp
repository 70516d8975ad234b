#include "expression.h"

#include <sluice/core/number.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

namespace layer_check {

using sluice::fail;
using sluice::str;
using sluice::ValueError;

bool is_true(const Json& v) {
  if (const auto* b = v.as<bool>()) return *b;
  if (const auto* i = v.as<int64_t>()) return *i != 0;
  if (const auto* x = v.as<double>()) return *x != 0;
  if (const auto* s = v.as<std::string>()) return !s->empty();
  if (const auto* l = v.as<Json::List>()) return !l->empty();
  return false;
}

namespace {

/// A recursive-descent parser that evaluates while it reads. As in Python, what a condition does not choose is not
/// evaluated: it is read with `skip_` set, where values mean nothing and names may be unknown.
class Parser {
 public:
  Parser(std::string_view text, const Values& names) : text_(text), names_(names) {}

  Json whole() {
    Json v = conditional();
    if (!peek().empty()) wrong(str("\"", peek(), "\" was not expected"));
    return v;
  }

 private:
  [[noreturn]] void wrong(const std::string& what) const { fail<ValueError>("formula \"", text_, "\": ", what); }

  std::string_view peek() const {
    std::size_t i = at_;
    while (i < text_.size() && text_[i] == ' ') ++i;
    if (i == text_.size()) return {};
    auto word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.'; };
    std::size_t j = i + 1;
    if (word(text_[i])) {
      while (j < text_.size() && word(text_[j])) ++j;
    } else if (text_[i] == '\'') {
      while (j < text_.size() && text_[j] != '\'') ++j;
      j = std::min(j + 1, text_.size());
    } else if (const std::string_view two = text_.substr(i, 2);
               two == "//" || two == "**" || two == "==" || two == "!=" || two == "<=" || two == ">=") {
      ++j;
    }
    return text_.substr(i, j - i);
  }
  std::string_view next() {
    const std::string_view token = peek();
    if (token.empty()) return token;
    at_ = static_cast<std::size_t>(token.data() - text_.data()) + token.size();
    return token;
  }
  bool accept(std::string_view token) {
    if (peek() != token) return false;
    next();
    return true;
  }
  void expect(std::string_view token) {
    if (!accept(token)) wrong(str("\"", token, "\" is missing"));
  }

  double number(const Json& v) const {
    if (skip_) return 1;
    if (const auto* i = v.as<int64_t>()) return static_cast<double>(*i);
    if (const auto* b = v.as<bool>()) return *b;
    if (const auto* x = v.as<double>()) return *x;
    wrong(str(v, " is not a number"));
  }
  int64_t whole(double x) const {
    if (!(std::abs(x) < 9e18)) wrong(str(x, " is too large"));
    return static_cast<int64_t>(x);
  }
  static bool whole_numbers(const Json& a, const Json& b) { return !a.as<double>() && !b.as<double>(); }
  bool equal(const Json& a, const Json& b) const {
    const bool text = a.as<std::string>() || b.as<std::string>() || a.is_null() || b.is_null();
    return text ? a == b : number(a) == number(b);
  }

  template <class F>
  void skip(F read) {
    const bool before = std::exchange(skip_, true);
    read();
    skip_ = before;
  }
  Json conditional() {
    const std::size_t start = at_;
    skip([&] { disjunction(); });
    const std::size_t end = at_;
    if (!accept("if")) {
      if (skip_) return {};
      at_ = start;
      return disjunction();
    }
    const bool taken = is_true(disjunction());
    expect("else");
    if (!taken || skip_) return conditional();
    skip([&] { conditional(); });
    const std::size_t after = std::exchange(at_, start);
    Json yes = disjunction();
    if (at_ != end) wrong("it cannot be read");
    at_ = after;
    return yes;
  }
  Json disjunction() {
    Json a = conjunction();
    while (accept("or")) {
      if (skip_ || !is_true(a)) a = conjunction();
      else skip([&] { conjunction(); });
    }
    return a;
  }
  Json conjunction() {
    Json a = negation();
    while (accept("and")) {
      if (skip_ || is_true(a)) a = negation();
      else skip([&] { negation(); });
    }
    return a;
  }
  Json negation() {
    if (accept("not")) return !is_true(negation());
    Json a = sum();
    if (accept("in")) {
      expect("(");
      bool found = false;
      do found = equal(a, sum()) || found;
      while (accept(",") && peek() != ")");
      expect(")");
      return found;
    }
    if (accept("==")) return equal(a, sum());
    if (accept("!=")) return !equal(a, sum());
    if (accept("<=")) return number(a) <= number(sum());
    if (accept(">=")) return number(a) >= number(sum());
    if (accept("<")) return number(a) < number(sum());
    if (accept(">")) return number(a) > number(sum());
    return a;
  }
  Json arithmetic(char op, const Json& a, const Json& b) const {
    const double x = number(a), y = number(b);
    const double z = op == '+' ? x + y : op == '-' ? x - y : op == '*' ? x * y : 0;
    if (whole_numbers(a, b)) return whole(z);
    return z;
  }
  Json sum() {
    Json a = product();
    for (;;) {
      if (accept("+")) a = arithmetic('+', a, product());
      else if (accept("-")) a = arithmetic('-', a, product());
      else return a;
    }
  }
  Json product() {
    Json a = factor();
    for (;;) {
      if (accept("*")) {
        a = arithmetic('*', a, factor());
      } else if (accept("/")) {
        a = number(a) / number(factor());
      } else if (peek() == "//" || peek() == "%") {
        const bool quotient = next() == "//";
        const double x = number(a), y = number(factor());
        if (y == 0) wrong("division by zero");
        const double q = std::floor(x / y);
        a = whole(quotient ? q : x - q * y);
      } else {
        return a;
      }
    }
  }
  Json factor() {
    if (accept("-")) return arithmetic('-', int64_t{0}, factor());
    const Json base = primary();
    if (!accept("**")) return base;
    const Json exponent = factor();
    const double z = std::pow(number(base), number(exponent));
    if (whole_numbers(base, exponent) && number(exponent) >= 0) return whole(z);
    return z;
  }
  Json primary() {
    const std::string_view token = next();
    if (token.empty()) wrong("it ends too early");
    if (token == "(") {
      Json v = conditional();
      expect(")");
      return v;
    }
    if (token[0] == '\'') return std::string(token.substr(1, token.size() - 2));
    if (std::isdigit(static_cast<unsigned char>(token[0]))) return literal(token);
    if (token == "True") return true;
    if (token == "False") return false;
    if (token == "None") return Json();
    if (peek() == "(") return call(token);
    if (skip_) return {};
    const auto it = names_.find(std::string(token));
    if (it == names_.end()) wrong(str("nothing is called \"", token, "\""));
    return it->second;
  }
  Json literal(std::string_view token) const {
    int64_t i = 0;
    const char* end = token.data() + token.size();
    if (std::from_chars(token.data(), end, i).ptr == end) return i;
    if (const std::optional<double> x = sluice::parse_double(token)) return *x;
    wrong(str("\"", token, "\" is not a number"));
  }
  Json call(std::string_view function) {
    expect("(");
    Json::List arguments;
    do arguments.push_back(conditional());
    while (accept(","));
    expect(")");
    const Json& a = arguments[0];
    if (function == "len") {
      const auto* list = a.as<Json::List>();
      if (!list && !skip_) wrong("len() needs a list");
      return list ? static_cast<int64_t>(list->size()) : 0;
    }
    if (function == "int") return whole(number(a));
    if (function != "min" && function != "max") wrong(str("unknown function ", function));
    Json best = a;
    for (const Json& v : arguments)
      if (function == "min" ? number(v) < number(best) : number(v) > number(best)) best = v;
    return best;
  }

  std::string_view text_;
  const Values& names_;
  std::size_t at_ = 0;
  bool skip_ = false;
};

}  // namespace

Json evaluate(std::string_view formula, const Values& names) { return Parser(formula, names).whole(); }

int64_t evaluate_size(std::string_view formula, const Values& names) {
  const Json v = evaluate(formula, names);
  if (const auto* i = v.as<int64_t>()) return *i;
  fail<ValueError>("formula \"", formula, "\": ", v, " is not a size");
}

}  // namespace layer_check
