#include <sluice/core/text/options.h>

#include "support/catch.h"

#include <limits>
#include <sstream>

using namespace sluice;

namespace sluice {

enum class Fruit { apple, pear, fig };
constexpr const char* choices(Fruit) { return "apple pear fig"; }

struct PartOptions {
  double weight = 1;
  int64_t count = 2;
  static void describe(auto& o, auto& f) {
    f("weight", o.weight, above(0), "in kg");
    f("count", o.count, between(1, 9), "how many");
  }
};

struct SampleOptions {
  int64_t dim;
  bool on = false;
  double eps = 1e-5, dropout = 0, tau = 0;
  std::optional<double> scale = std::nullopt;
  Fruit fruit = Fruit::pear;
  std::optional<Fruit> second = std::nullopt;
  std::optional<bool> self = std::nullopt;
  std::vector<int64_t> global = {};
  std::vector<double> gamma = {};
  PartOptions part = {};
  std::vector<PartOptions> parts = {};
  std::vector<Fruit> basket = {};
  std::string label = {};
  int64_t offset = 0;
  DType dtype = f32;

  static void describe(auto& o, auto& f) {
    f.required("dim", o.dim, at_least(1), "width");
    f("on", o.on, "whether");
    f("eps", o.eps, at_least(0), "of the denominator");
    f.training("dropout", o.dropout, probability(), "of values");
    f("tau", o.tau, OptionRange{.infinite = true}, "threshold");
    f("scale", o.scale, any_number(), "of scores");
    f("fruit", o.fruit, "which");
    f("second", o.second, "another");
    f("self", o.self, "itself");
    f("global", o.global, at_least(0), "positions");
    f("gamma", o.gamma, OptionRange{.low = 0, .high = 1, .without_low = true}, "decays");
    f.nested("part_", o.part);
    f("parts", o.parts, "more");
    f("basket", o.basket, "some");
    f("label", o.label, "its name");
    f("offset", o.offset, any_number(), "in tokens");
    f.training("dtype", o.dtype, "of the parameters");
  }
};

}  // namespace sluice

namespace another {

enum class Colour { red, green };
constexpr const char* choices(Colour) { return "red green"; }

struct Options {
  int64_t dim = 3;
  Colour colour = Colour::green;
  static void describe(auto& o, auto& f) {
    f("dim", o.dim, at_least(1), "width");
    f("colour", o.colour, "which");
  }
};

}  // namespace another

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity(), kNaN = std::numeric_limits<double>::quiet_NaN();

SampleOptions all_set() {
  return {.dim = 8,
          .on = true,
          .eps = 1e-300,
          .dropout = 0.25,
          .tau = -kInf,
          .scale = 0.5,
          .fruit = Fruit::fig,
          .second = Fruit::apple,
          .self = false,
          .global = {0, 3},
          .gamma = {0.5, 1},
          .part = {.weight = 2, .count = 9},
          .parts = {{}, {.weight = 3}},
          .basket = {Fruit::fig, Fruit::apple},
          .label = "nan",
          .dtype = f64};
}

/// What check_options says when one value is changed.
template <class F> std::string refusal(F change) {
  SampleOptions o{.dim = 1};
  change(o);
  try {
    check_options("op", o);
  } catch (const ValueError& e) { return e.what(); }
  return "";
}

}  // namespace

TEST_CASE("options of another namespace stand in messages") {
  CHECK(str("got ", another::Options{.dim = 5, .colour = another::Colour::red}) == "got {dim=5, colour=red}");
  CHECK(str(another::Colour::red) == "red");
}

TEST_CASE("options: a round trip through JSON keeps every value", "[options]") {
  const SampleOptions from = all_set();
  SampleOptions to{};
  from_json("op", parse_json(to_text(to_json(from))), to);
  CHECK(to_json(to) == to_json(from));
  CHECK(to_text(to_json(to)) == to_text(to_json(from)));
  CHECK((to.tau == -kInf && to.scale == 0.5 && to.second == Fruit::apple && to.self == false && to.dtype == f64));
  CHECK((to.parts.size() == 2 && to.parts[1].weight == 3 && to.part.count == 9));
  CHECK((to.basket == from.basket && to.label == "nan"));
  to.parts[1].count = 3;
  CHECK_FALSE(to_json(to) == to_json(from));
  SampleOptions partly = all_set();
  from_json("op", parse_json(R"({"dim": 3, "second": null, "scale": null, "self": null})"), partly);
  CHECK((partly.dim == 3 && !partly.second && !partly.scale && !partly.self && partly.on));  // the rest stays
}

TEST_CASE("options: printing shows what differs from the defaults", "[options]") {
  std::ostringstream out;
  out << SampleOptions{.dim = 4, .fruit = Fruit::fig, .part = {.count = 3}};
  CHECK(out.str() == "{dim=4, fruit=fig, part_count=3}");
  CHECK(str(SampleOptions{.dim = 2}) == "{dim=2}");
}

TEST_CASE("options: values out of range are refused by name", "[options]") {
  CHECK(refusal([](auto&) {}).empty());
  CHECK(refusal([](auto& o) { o = all_set(); }).empty());
  CHECK(refusal([](auto& o) { o.dim = 0; }) == "op: dim must be at least 1 — got dim=0");
  CHECK(refusal([](auto& o) { o.dim = kLargestSize; }).empty());
  CHECK(refusal([](auto& o) { o.dim = kLargestSize + 1; }) ==
        "op: dim must be at most 2147483647 — got dim=2147483648");
  CHECK(refusal([](auto& o) { o.dim = std::numeric_limits<int64_t>::min(); }).starts_with("op: dim must be at least"));
  CHECK(refusal([](auto& o) { o.offset = -kLargestSize; }).empty());
  CHECK(refusal([](auto& o) { o.offset = -kLargestSize - 1; }) ==
        "op: offset must be at least -2147483647 — got offset=-2147483648");
  CHECK(refusal([](auto& o) { o.eps = -1; }) == "op: eps must be at least 0 — got eps=-1");
  CHECK(refusal([](auto& o) { o.eps = kNaN; }) == "op: eps must be finite — got eps=nan");
  CHECK(refusal([](auto& o) { o.eps = kInf; }) == "op: eps must be finite — got eps=inf");
  CHECK(refusal([](auto& o) { o.dropout = 1; }) == "op: dropout must be in [0, 1) — got dropout=1");
  CHECK(refusal([](auto& o) { o.tau = kInf; }).empty());
  CHECK(refusal([](auto& o) { o.tau = kNaN; }) == "op: tau must be finite — got tau=nan");
  CHECK(refusal([](auto& o) { o.scale = kInf; }) == "op: scale must be finite — got scale=inf");
  CHECK(refusal([](auto& o) { o.global = {1, -1}; }) == "op: global must be at least 0 — got global=-1");
  CHECK(refusal([](auto& o) { o.gamma = {1, 0}; }) == "op: gamma must be in (0, 1] — got gamma=0");
  CHECK(refusal([](auto& o) { o.part.count = 10; }) == "op: part_count must be in [1, 9] — got part_count=10");
  CHECK(refusal([](auto& o) {
          o.parts = {{}, {.weight = 0}};
        }) == "op: parts[1]: weight must be above 0 — got weight=0");
  CHECK(refusal([](auto& o) { o.fruit = static_cast<Fruit>(7); }) ==
        "op: fruit must be one of apple, pear, fig — got number 7");
  CHECK(refusal([](auto& o) { o.second = static_cast<Fruit>(-1); }).ends_with("got number -1"));
  CHECK(refusal([](auto& o) {
          o.basket = {Fruit::fig, static_cast<Fruit>(3)};
        }) == "op: basket must be one of apple, pear, fig — got number 3");
}

TEST_CASE("options: JSON of other names and types is refused", "[options]") {
  auto refusal = [](const char* text) -> std::string {
    SampleOptions o{};
    const Json before = to_json(o);
    try {
      from_json("op", parse_json(text), o);
    } catch (const ValueError& e) {
      CHECK(to_json(o) == before);
      return e.what();
    }
    return "";
  };
  CHECK_THAT(refusal("{}"), Contains("op: option \"dim\" (int, width) is required"));
  CHECK_THAT(refusal("[]"), Contains("must be a JSON object — got []"));
  CHECK_THAT(refusal(R"({"dim": 1, "dropuot": 0})"),
             Contains("unknown option \"dropuot\" — did you mean \"dropout\"?; known: dim, on, eps"));
  CHECK_THAT(refusal(R"({"dim": 1, "quite different": 0})"), !Contains("did you mean"));
  CHECK_THAT(refusal(R"({"dim": 1.5})"), Contains("option \"dim\" must be of type int — got 1.5"));
  CHECK_THAT(refusal(R"({"dim": 1, "on": 1})"), Contains("must be of type bool — got 1"));
  CHECK_THAT(refusal(R"({"dim": 1, "eps": "nan"})"), Contains("must be of type float — got \"nan\""));
  CHECK_THAT(refusal(R"({"dim": 1, "scale": [1]})"), Contains("must be of type float or null — got [1]"));
  CHECK_THAT(refusal(R"({"dim": 1, "fruit": "appel"})"),
             Contains("must be of type text — got \"appel\"; known: apple, pear, fig — did you mean \"apple\"?"));
  CHECK_THAT(refusal(R"({"dim": 1, "fruit": null})"), Contains("must be of type text — got null"));
  CHECK_THAT(refusal(R"({"dim": 1, "global": [1.5]})"), Contains("must be of type list of int"));
  CHECK_THAT(refusal(R"({"dim": 1, "global": 1})"), Contains("must be of type list of int — got 1"));
  CHECK_THAT(refusal(R"({"dim": 1, "parts": [{"wieght": 1}]})"), Contains("op: parts[0]: unknown option \"wieght\""));
  CHECK_THAT(refusal(R"({"dim": 1, "parts": {}})"), Contains("must be of type list of objects"));
  CHECK_THAT(refusal(R"({"dim": 1, "parts": [{}, {"count": 0}]})"), Contains("op: parts[1]: count must be in [1, 9]"));
  CHECK_THAT(refusal(R"({"dim": 1, "basket": ["fig", "pea"]})"), Contains("must be of type list of text — got"));
  CHECK_THAT(refusal(R"({"dim": 1, "label": 1})"), Contains("must be of type text — got 1"));
  CHECK_THAT(refusal(R"({"dim": -1})"), Contains("dim must be at least 1"));
}

TEST_CASE("options: names of choices", "[options]") {
  CHECK(name_of(Fruit::apple) == "apple");
  CHECK(name_of(Fruit::fig) == "fig");
  CHECK(name_of(static_cast<Fruit>(3)) == "unknown");
  CHECK(str("a ", Fruit::pear) == "a pear");
  CHECK(from_name<Fruit>("pear") == Fruit::pear);
  CHECK_THROWS_WITH(from_name<Fruit>("plum"), Contains("\"plum\"; known: apple, pear, fig"));
  for (DType t : {f32, f64, bf16, i64, i32, boolean}) CHECK(from_name<DType>(name_of(t)) == t);
}
