// to_dot: text that Graphviz would accept, whatever the names are.
#include <sluice/autograd/dot.h>

#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/autograd/function.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/matmul/matmul.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/view.h>

#include <set>

using namespace sluice;

namespace {

struct Graph {
  std::set<std::string> nodes;
  std::vector<std::pair<std::string, std::string>> edges;
  std::string labels;
};

/// A small reader of the language: fails the test on anything that is not well-formed.
Graph parse(const std::string& text) {
  Graph g;
  std::size_t i = 0;
  int braces = 0, brackets = 0;
  std::string word, from;
  bool arrow = false;
  auto end_statement = [&] {
    if (arrow) g.edges.emplace_back(from, word);
    else if (!word.empty() && word[0] == 'n' && word.size() > 1 && isdigit(word[1])) g.nodes.insert(word);
    word.clear(), from.clear(), arrow = false;
  };
  for (; i < text.size(); ++i) {
    char c = text[i];
    if (c == '"') {
      std::string quoted;
      for (++i; i < text.size() && text[i] != '"'; ++i) {
        if (text[i] == '\\' && (text[i + 1] == '"' || text[i + 1] == '\\')) ++i;
        REQUIRE(i < text.size());
        quoted += text[i];
      }
      REQUIRE(i < text.size());  // the quote is closed
      g.labels += quoted + "\n";
    } else if (c == '{') ++braces;
    else if (c == '}') REQUIRE(--braces >= 0);
    else if (c == '[') ++brackets;
    else if (c == ']') REQUIRE(--brackets >= 0);
    else if (c == ';') {
      REQUIRE(brackets == 0);
      end_statement();
    } else if (c == '-' && text.substr(i, 2) == "->") {
      from = word, word.clear(), arrow = true, ++i;
    } else if (brackets == 0 && (isalnum(c) || c == '_')) word += c;
    else if (brackets == 0 && c == '{') word.clear();
    if (c == '{') word.clear();
    if (brackets == 0) REQUIRE((isalnum(c) || isspace(c) || std::string("{};->=[]\"_").find(c) != std::string::npos));
  }
  REQUIRE(braces == 0);
  REQUIRE(brackets == 0);
  for (auto& [a, b] : g.edges) {
    CHECK(g.nodes.contains(a));
    CHECK(g.nodes.contains(b));
  }
  return g;
}

}  // namespace

TEST_CASE("to_dot: ops, shapes, leaves and edges are there", "[dot]") {
  Tensor x = ones({2, 3}).requires_grad_(), w = ones({3, 4}).requires_grad_();
  Graph g = parse(to_dot(tanh(matmul(x, w)), {{"x", x}, {"layer.weight", w}}));
  CHECK(g.nodes.size() == 4);
  CHECK(g.edges.size() == 3);
  for (std::string part : {"tanh", "matmul", "[2,4] f32", "x\\n[2,3]", "layer.weight\\n[3,4]"})
    CHECK_THAT(g.labels, Contains(part));
}

TEST_CASE("to_dot: a shared node is drawn once, with each of its uses", "[dot]") {
  Tensor x = ones({2}).requires_grad_(), h = exp(x);
  Graph g = parse(to_dot(h * h + x));
  CHECK(g.nodes.size() == 4);
  CHECK(g.edges.size() == 5);
  auto p = split(x, {1, 1});
  Graph s = parse(to_dot(p[0] + p[1]));
  CHECK(s.nodes.size() == 3);
}

TEST_CASE("to_dot: a constant gives an empty graph, a leaf a single box", "[dot]") {
  Graph g = parse(to_dot(ones({2})));
  CHECK(g.nodes.empty());
  Tensor x = ones({2}).requires_grad_();
  std::string text = to_dot(x, {{"only", x}});
  CHECK(parse(text).nodes.size() == 1);
  CHECK_THAT(text, Contains("shape=box") && Contains("only"));
}

TEST_CASE("to_dot: names of tensors and of custom ops are free text", "[dot]") {
  Tensor x = ones({2}).requires_grad_();
  Tensor y = custom_op(
      "say \"hi\" \\ ]; }", {x}, [](const Tensors& in) { return in[0] * 1.0; },
      [](const Tensor& g, const Tensors&, const Tensor&) -> Tensors { return {g}; });
  Graph g = parse(to_dot(y, {{"quote \" back \\ brace } \\", x}, {"y\"", y}}));
  CHECK(g.nodes.size() == 2);
  CHECK(g.edges.size() == 1);
  CHECK_THAT(g.labels, Contains("say \"hi\" \\ ]; }") && Contains("quote \" back \\ brace } \\"));
}

TEST_CASE("to_dot: a walked graph can still be drawn", "[dot]") {
  Tensor x = ones({2}).requires_grad_(), y = sum(exp(x));
  backward(y);
  CHECK(parse(to_dot(y)).nodes.size() == 3);
}
