#include <sluice/core/text/json.h>

#include "support/catch.h"
#include "support/limit.h"

#include <new>

using namespace sluice;
using namespace sluice::testing;

TEST_CASE("json: what is written is read back", "[json]") {
  const Json j = Json::Object{{"null", {}},
                              {"bools", Json::List{true, false}},
                              {"whole", int64_t{-9223372036854775807}},
                              {"float", 0.1},
                              {"text", "a\"b\\ ü\n"},
                              {"empty", Json::Object{}},
                              {"deep", Json::List{Json::Object{{"x", Json::List{1, 2.5}}}}}};
  CHECK(parse_json(to_text(j)) == j);
  CHECK(parse_json(to_text(j, 2)) == j);
  const Json nested = Json::Object{{"a", Json::List{1, Json::List{}, Json::Object{{"b", {}}}}}, {"c", Json::Object{}}};
  CHECK(to_text(nested) == R"({"a":[1,[],{"b":null}],"c":{}})");
  CHECK(to_text(nested, 0) == "{\n\"a\": [\n1,\n[],\n{\n\"b\": null\n}\n],\n\"c\": {}\n}");
  CHECK(to_text(nested, 2) == "{\n  \"a\": [\n    1,\n    [],\n    {\n      \"b\": null\n    }\n  ],\n  \"c\": {}\n}");
  CHECK(to_text(Json::Object{{"b", 1}, {"a", Json::List{1.5, Json("x")}}}) == R"({"b":1,"a":[1.5,"x"]})");
  CHECK(j.find("float")->as<double>() != nullptr);
  CHECK(j.find("float")->as<int64_t>() == nullptr);
  CHECK(j.find("no") == nullptr);
  CHECK(parse_json("18446744073709551615") == Json(18446744073709551615.0));
  Json made;
  made["a"]["b"] = 1;
  made["a"]["b"] = 2;
  CHECK(to_text(made) == R"({"a":{"b":2}})");
}

TEST_CASE("json: what is not JSON says where and why", "[json]") {
  for (const char* wrong : {"", "{", "[1,]", "{\"a\":1,}", "nul", "1 2", "{\"a\" 1}", "\"\xff\"", "1e999"})
    CHECK_THROWS_WITH(parse_json(wrong), Contains("json: it is not JSON at byte "));
  CHECK_THROWS_WITH(parse_json(std::string_view("{}\0 no JSON", 11)), Contains("a NUL character"));
  CHECK_THROWS_WITH(parse_json(R"({"a": 1, "b": {"a": 2, "c": 3, "a": 4}})"), Contains("the name \"a\" appears twice"));
  CHECK_NOTHROW(parse_json(std::string(32, '[') + std::string(32, ']')));
  CHECK_THROWS_WITH(parse_json(std::string(1000000, '[')), Contains("nested deeper than 32"));
  CHECK_THROWS_AS(to_text(Json("\xff")), ValueError);
  const Json large = Json::Object{{"a", std::string(1000000, 'x')}};  // is not shown whole
  CHECK_THROWS_WITH(large.at("b"), "json: no \"b\" in {\"a\":\"" + std::string(194, 'x') + "…");
  CHECK_THROWS_WITH(large.get<bool>(), EndsWith("got {\"a\":\"" + std::string(194, 'x') + "…"));
  const Json cut = Json::Object{{"a", std::string(193, 'x') + "é"}};  // byte 200 is within a character
  CHECK_THROWS_WITH(cut.at("b"), EndsWith("xx…"));
}

TEST_CASE("json: a copy that finds no memory", "[json]") {
  if (!MemoryLimit::works()) {
    WARN("not tested: limits of memory do nothing here");
    return;
  }
  const Json text = std::string(std::size_t{64} << 20, 'x'), list = Json::List{1, text};
  Json other = "as it was";
  {
    const MemoryLimit limit(int64_t{32} << 20);
    CHECK_THROWS_AS(Json(text), std::bad_alloc);
    CHECK_THROWS_AS(other = list, std::bad_alloc);
    CHECK_THROWS_AS(to_text(list), std::bad_alloc);
  }
  CHECK(other == Json("as it was"));
  other = list;
  CHECK(other == list);
}
