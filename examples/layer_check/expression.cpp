#include "expression.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace layer_check {

using sluice::fail;
using sluice::str;
using sluice::ValueError;

std::string text_of(const Value& v) {
  struct {
    std::string operator()(std::monostate) const { return "null"; }
    std::string operator()(bool b) const { return b ? "true" : "false"; }
    std::string operator()(int64_t i) const { return std::to_string(i); }
    std::string operator()(double x) const { return str(x); }
    std::string operator()(const std::string& s) const { return "\"" + s + "\""; }
    std::string operator()(const std::vector<double>& xs) const {
      std::string s = "[";
      for (double x : xs) s += str(s.size() > 1 ? ", " : "", x);
      return s + "]";
    }
    std::string operator()(const std::shared_ptr<const Objects>& o) const {
      return str("[", o->list.size(), " objects]");
    }
  } const write;
  return std::visit(write, v);
}

bool is_true(const Value& v) {
  struct {
    bool operator()(std::monostate) const { return false; }
    bool operator()(bool b) const { return b; }
    bool operator()(int64_t i) const { return i != 0; }
    bool operator()(double x) const { return x != 0; }
    bool operator()(const std::string& s) const { return !s.empty(); }
    bool operator()(const std::vector<double>& xs) const { return !xs.empty(); }
    bool operator()(const std::shared_ptr<const Objects>& o) const { return !o->list.empty(); }
  } const ask;
  return std::visit(ask, v);
}

namespace {

/// A recursive-descent parser that evaluates while it reads.
class Parser {
 public:
  Parser(std::string_view text, const Values& names) : text_(text), names_(names) {}

  Value whole() {
    Value v = conditional();
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

  static double number(const Value& v) {
    if (const auto* i = std::get_if<int64_t>(&v)) return static_cast<double>(*i);
    if (const auto* b = std::get_if<bool>(&v)) return *b;
    if (const auto* x = std::get_if<double>(&v)) return *x;
    fail<ValueError>("formula: ", text_of(v), " is not a number");
  }
  static bool whole_numbers(const Value& a, const Value& b) {
    return !std::holds_alternative<double>(a) && !std::holds_alternative<double>(b);
  }
  static bool equal(const Value& a, const Value& b) {
    const bool text = std::holds_alternative<std::string>(a) || std::holds_alternative<std::string>(b);
    const bool none = a.index() == 0 || b.index() == 0;
    return text || none ? a == b : number(a) == number(b);
  }

  Value conditional() {
    Value yes = disjunction();
    if (!accept("if")) return yes;
    const bool taken = is_true(disjunction());
    expect("else");
    Value no = conditional();
    return taken ? yes : no;
  }
  Value disjunction() {
    Value a = conjunction();
    while (accept("or")) {
      Value b = conjunction();
      if (!is_true(a)) a = b;
    }
    return a;
  }
  Value conjunction() {
    Value a = negation();
    while (accept("and")) {
      Value b = negation();
      if (is_true(a)) a = b;
    }
    return a;
  }
  Value negation() {
    if (accept("not")) return !is_true(negation());
    Value a = sum();
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
  static Value arithmetic(char op, const Value& a, const Value& b) {
    const double x = number(a), y = number(b);
    const double z = op == '+' ? x + y : op == '-' ? x - y : op == '*' ? x * y : 0;
    if (whole_numbers(a, b)) return static_cast<int64_t>(z);
    return z;
  }
  Value sum() {
    Value a = product();
    for (;;) {
      if (accept("+")) a = arithmetic('+', a, product());
      else if (accept("-")) a = arithmetic('-', a, product());
      else return a;
    }
  }
  Value product() {
    Value a = factor();
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
        a = static_cast<int64_t>(quotient ? q : x - q * y);
      } else {
        return a;
      }
    }
  }
  Value factor() {
    if (accept("-")) return arithmetic('-', int64_t{0}, factor());
    const Value base = primary();
    if (!accept("**")) return base;
    const Value exponent = factor();
    const double z = std::pow(number(base), number(exponent));
    if (whole_numbers(base, exponent) && number(exponent) >= 0) return static_cast<int64_t>(z);
    return z;
  }
  Value primary() {
    const std::string_view token = next();
    if (token.empty()) wrong("it ends too early");
    if (token == "(") {
      Value v = conditional();
      expect(")");
      return v;
    }
    if (token[0] == '\'') return std::string(token.substr(1, token.size() - 2));
    if (std::isdigit(static_cast<unsigned char>(token[0]))) return literal(token);
    if (token == "True") return true;
    if (token == "False") return false;
    if (token == "None") return std::monostate{};
    if (peek() == "(") return call(token);
    const auto it = names_.find(std::string(token));
    if (it == names_.end()) wrong(str("nothing is called \"", token, "\""));
    return it->second;
  }
  Value literal(std::string_view token) const {
    int64_t i = 0;
    const char* end = token.data() + token.size();
    if (std::from_chars(token.data(), end, i).ptr == end) return i;
    double x = 0;
    if (std::from_chars(token.data(), end, x).ptr == end) return x;
    wrong(str("\"", token, "\" is not a number"));
  }
  Value call(std::string_view function) {
    expect("(");
    std::vector<Value> arguments;
    do arguments.push_back(conditional());
    while (accept(","));
    expect(")");
    const Value& a = arguments[0];
    if (function == "len") {
      if (const auto* xs = std::get_if<std::vector<double>>(&a)) return static_cast<int64_t>(xs->size());
      if (const auto* o = std::get_if<std::shared_ptr<const Objects>>(&a))
        return static_cast<int64_t>((*o)->list.size());
      wrong("len() needs a list");
    }
    if (function == "int") return static_cast<int64_t>(number(a));
    if (function != "min" && function != "max") wrong(str("unknown function ", function));
    Value best = a;
    for (const Value& v : arguments)
      if (function == "min" ? number(v) < number(best) : number(v) > number(best)) best = v;
    return best;
  }

  std::string_view text_;
  const Values& names_;
  std::size_t at_ = 0;
};

}  // namespace

Value evaluate(std::string_view formula, const Values& names) { return Parser(formula, names).whole(); }

int64_t evaluate_size(std::string_view formula, const Values& names) {
  const Value v = evaluate(formula, names);
  if (const auto* i = std::get_if<int64_t>(&v)) return *i;
  fail<ValueError>("formula \"", formula, "\": ", text_of(v), " is not a size");
}

}  // namespace layer_check
