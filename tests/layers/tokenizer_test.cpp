// Tokenizers against Hugging Face's `tokenizers`: tests/golden/port/tokenizers.json, which tokenizers.py wrote.
#include <sluice/layers/port/tokenizer.h>

#include <sluice/core/error.h>
#include <sluice/core/text/file.h>
#include <sluice/core/text/json.h>

#include "support/catch.h"
#include "support/folders.h"
#include "support/temp_folder.h"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <random>

using namespace sluice;
using sluice::testing::TempFolder;

namespace {

using Ids = std::vector<int64_t>;

const Json& golden() {
  static const Json file =
      parse_json(read_file(sluice::testing::source_folder() + "/tests/golden/port/tokenizers.json"));
  return file;
}
/// The whole tokenizer.json of a case.
Json whole(const Json& of) {
  Json file = of.at("tokenizer");
  file["model"] = of.at("options");
  for (const auto& [name, value] : golden().at("models").at(of.at("model").get<std::string>()).get<Json::Object>())
    file["model"][name] = value;
  return file;
}
const Json& case_named(const std::string& name) {
  for (const Json& c : golden().at("cases").get<Json::List>())
    if (c.at("name").get<std::string>() == name) return c;
  throw std::runtime_error("no case " + name);
}
Tokenizer load_text(const std::string& text) {
  TempFolder folder;
  return Tokenizer::from_file(folder.put("tokenizer.json", text));
}
Tokenizer load_case(const std::string& name) { return load_text(to_text(whole(case_named(name)))); }

Ids ids(const Json& list) {
  Ids all;
  for (const Json& i : list.get<Json::List>()) all.push_back(i.get<int64_t>());
  return all;
}
std::string unhex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2) bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}
std::string streamed(const Tokenizer& tokenizer, const Ids& tokens, const DecodeOptions& options = {}) {
  TokenStream stream(tokenizer, options);
  std::string text;
  for (const int64_t id : tokens) text += stream.push(id);
  return text + stream.finish();
}

/// What reading this file says.
std::string refusal(const std::string& text) {
  try {
    load_text(text);
  } catch (const IOError& e) { return e.what(); }
  return "";
}
/// The file of the case qwen2 with one value replaced; the path is as in messages.
std::string refusal(const std::vector<std::string>& path, const Json& value) {
  Json file = whole(case_named("qwen2"));
  Json* at = &file;
  for (const std::string& name : path) at = &(*at)[name];
  *at = value;
  return refusal(to_text(file));
}
Json pattern(const std::string& expression) {
  return Json::Object{
      {"type", "Split"}, {"pattern", Json::Object{{"Regex", expression}}}, {"behavior", "Isolated"}, {"invert", false}};
}

}  // namespace

TEST_CASE("tokenizer: equals tokenizers on every family", "[tokenizer]") {
  const Json::List& texts = golden().at("texts").get<Json::List>();
  REQUIRE(golden().at("cases").get<Json::List>().size() >= 23);
  for (const Json& c : golden().at("cases").get<Json::List>()) {
    INFO(c.at("name").get<std::string>());
    const Tokenizer tokenizer = load_text(to_text(whole(c)));
    CHECK(tokenizer.size() == c.at("size").get<int64_t>());
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const std::string& text = texts[i].get<std::string>();
      INFO(text);
      const Ids want = ids(c.at("ids").get<Json::List>()[i]);
      CHECK(tokenizer.encode(text) == want);
      const Json& decoded = c.at("decoded").get<Json::List>()[i];
      CHECK(tokenizer.decode(want) == (decoded.is_null() ? text : decoded.get<std::string>()));
      if (i < c.at("plain").get<Json::List>().size())
        CHECK(tokenizer.encode(text, {.special = false, .special_in_text = false}) ==
              ids(c.at("plain").get<Json::List>()[i]));
    }
    for (std::size_t i = 0; i < c.at("drawn").get<Json::List>().size(); ++i) {
      const Ids drawn = ids(c.at("drawn").get<Json::List>()[i]);
      CHECK(tokenizer.decode(drawn) == c.at("drawn_text").get<Json::List>()[i].get<std::string>());
      CHECK(tokenizer.decode(drawn, {.skip_special = true}) ==
            c.at("drawn_skipping").get<Json::List>()[i].get<std::string>());
    }
  }
}

TEST_CASE("tokenizer: empty matches, and tokens of white space, are as in tokenizers", "[tokenizer]") {
  const auto load = [](const std::string& fields) {
    return load_text(R"({"version": "1.0", )" + fields + R"(, "model": {"type": "BPE", "merges": ["a b"],
                        "vocab": {"a": 0, "b": 1, "x": 2, "_": 3, "ab": 4, "\n": 5}}})");
  };
  const auto replace = [](const char* expression) {
    return str(R"({"type": "Replace", "pattern": {"Regex": ")", expression, R"("}, "content": "_"})");
  };
  for (const auto& [expression, text, want] :
       {std::tuple("(?=b)", "bxb", Ids{3, 1, 2, 3, 1}), std::tuple("$", "ab", Ids{4, 3}),
        std::tuple("x?", "axxb", Ids{3, 0, 3, 3, 1, 3}), std::tuple("x*", "xaxxb", Ids{3, 0, 3, 1, 3})}) {
    INFO(expression);
    CHECK(load("\"normalizer\": " + replace(expression)).encode(text) == want);
  }
  CHECK(load("\"decoder\": " + replace("x?")).decode({2, 0, 1}) == "__a__b_");

  for (const char* const behavior : {"Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"})
    for (const auto& [expression, text, want] :
         {std::tuple("(?=b)", "xabab", Ids{2, 0, 1, 0, 1}), std::tuple("x?", "xabxab", Ids{2, 0, 1, 2, 0, 1}),
          std::tuple("(?=a)", "abab", Ids{4, 4})})
      for (const bool invert : {false, true}) {
        CAPTURE(behavior, expression, invert);
        CHECK(load(str(R"("pre_tokenizer": {"type": "Split", "pattern": {"Regex": ")", expression,
                       R"("}, "behavior": ")", behavior, R"(", "invert": )", invert, "}"))
                  .encode(text) == want);
      }

  for (const auto& [left, right, text, want] :
       {std::tuple(true, true, "a\n\n\nb", Ids{0, 5, 1}), std::tuple(true, false, "a\n\n\nb", Ids{0, 5, 5, 5, 1}),
        std::tuple(false, true, "a\n\n\nb", Ids{0, 5, 5, 5, 1}), std::tuple(true, true, "a\n \nb", Ids{0, 5, 1})}) {
    CAPTURE(left, right, text);
    CHECK(load(str(R"("added_tokens": [{"id": 5, "content": "\n", "single_word": false, "lstrip": )", left,
                   R"(, "rstrip": )", right, R"(, "normalized": false, "special": true}])"))
              .encode(text) == want);
  }
}

TEST_CASE("tokenizer: bytes that are not UTF-8", "[tokenizer]") {
  const Tokenizer tokenizer = load_case("qwen2");
  for (const Json& b : golden().at("broken").get<Json::List>()) {
    const std::string bytes = unhex(b.at("hex").get<std::string>()), text = b.at("text").get<std::string>();
    INFO(b.at("hex").get<std::string>());
    CHECK(tokenizer.encode(bytes) == tokenizer.encode(text));
    Ids tokens;  // of single bytes, which the first 256 of the vocabulary are
    for (const unsigned char c : bytes) {
      const bool visible = (c > 32 && c < 127) || (c > 160 && c != 173);
      const int others = c < 33 ? c : c < 161 ? 33 + c - 127 : 67;
      const int code = visible ? c : 256 + others;
      std::string name;
      if (code < 128) name += static_cast<char>(code);
      else (name += static_cast<char>(0xc0 | code >> 6)) += static_cast<char>(0x80 | (code & 63));
      tokens.push_back(tokenizer.id_of(name).value());
    }
    CHECK(tokenizer.decode(tokens) == text);
    CHECK(streamed(tokenizer, tokens) == text);
  }
}

TEST_CASE("tokenizer: a stream holds back what is not certain", "[tokenizer]") {
  const Tokenizer bytes = load_case("gpt2");
  TokenStream stream(bytes);
  std::string text;
  for (const int64_t id : bytes.encode("中😀a")) {
    text += stream.push(id);
    CHECK(text == std::string("中😀a").substr(0, text.size()));
    CHECK((text.size() < 3 || text.size() == 3 || text.size() >= 7));
  }
  CHECK(text == "中😀a");
  CHECK(stream.finish().empty());

  const Tokenizer fallback = load_case("llama2");
  TokenStream pieces(fallback);
  const auto byte = [&](const char* name) { return pieces.push(fallback.id_of(name).value()); };
  CHECK((byte("<0xE4>").empty() && byte("<0xB8>").empty() && byte("<0xAD>").empty()));
  CHECK(pieces.push(fallback.id_of("a").value()) == "中a");
  CHECK(byte("<0xE4>").empty());
  CHECK(pieces.finish() == "\xef\xbf\xbd");
  CHECK(pieces.push(fallback.id_of("▁").value()).empty());  // the space at the start of the text, removed once a text
  CHECK(pieces.push(fallback.id_of("▁").value()) == " ");

  TokenStream skipping(bytes, {.skip_special = true});
  CHECK(skipping.push(bytes.id_of("<|end|>").value()).empty());
  CHECK(skipping.push(-1).empty());
  CHECK(skipping.push(int64_t{1} << 40).empty());
}

TEST_CASE("tokenizer: tokens by number and by text", "[tokenizer]") {
  const Tokenizer tokenizer = load_case("llama3");
  for (int64_t id = 0; id < tokenizer.size(); ++id) CHECK(tokenizer.id_of(tokenizer.token_of(id).value()) == id);
  CHECK(!tokenizer.token_of(tokenizer.size()));
  CHECK(!tokenizer.token_of(-1));
  CHECK(!tokenizer.id_of("no such token"));
  const Ids with = tokenizer.encode("a"), without = tokenizer.encode("a", {.special = false});
  CHECK(with == Ids{tokenizer.id_of("<|begin|>").value(), without.at(0)});
}

TEST_CASE("tokenizer: added tokens of which one begins another, or is another when normalized", "[tokenizer]") {
  const auto token = [](int64_t id, const char* text, bool special, bool normalized) {
    return Json(Json::Object{{"id", id}, {"content", text}, {"special", special}, {"normalized", normalized}});
  };
  Json file = whole(case_named("qwen2"));
  file["normalizer"] = Json::Object{{"type", "Replace"}, {"pattern", Json::Object{{"String", "Q"}}}, {"content", "q"}};
  file["post_processor"] = Json();
  file["added_tokens"] =
      Json::List{token(5000, "<q>", true, false), token(5001, "<q", false, false), token(5002, "<qq>", false, true),
                 token(5003, "<Qq>", false, true), token(5004, "<QQ!>", true, true)};
  const Tokenizer tokenizer = load_text(to_text(file));
  CHECK(tokenizer.encode("<q><q") == Ids{5000, 5001});
  // A special token that is spelt in a text stays text, with what begins it, as in the package tokenizers.
  const Ids text = tokenizer.encode("<q>", {.special_in_text = false});
  CHECK(std::ranges::none_of(text, [](int64_t id) { return id >= 5000; }));
  CHECK(tokenizer.decode(text) == "<q>");
  CHECK(tokenizer.encode("<Qq>") == Ids{5002});  // the first of two that are the same now
  // As in the package tokenizers, a special token is left out by its spelling in the file.
  CHECK(tokenizer.decode({5000, 5004, 5001}) == "<q><qq!><q");
  CHECK(tokenizer.decode({5000, 5004, 5001}, {.skip_special = true}) == "<qq!><q");
}

TEST_CASE("tokenizer: a long word takes n log n", "[tokenizer]") {
  const std::string letters(1'000'000, 'e'), spaces(1'000'000, ' ');
  std::string mixed;
  std::mt19937 rng(1);
  for (int i = 0; i < 1'000'000; ++i) mixed += static_cast<char>('a' + rng() % 20);
  for (const char* name : {"gpt2", "gpt_oss", "kimi", "gemma2"})
    for (const std::string& text : {letters, spaces, mixed}) {
      const Tokenizer tokenizer = load_case(name);
      const auto begin = std::chrono::steady_clock::now();
      const Ids tokens = tokenizer.encode(text, {.special = false});
      CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(60));  // squared: an hour
      CHECK(tokenizer.decode(tokens) == text);
    }
}

TEST_CASE("tokenizer: files that cannot be read", "[tokenizer]") {
  CHECK_THROWS_AS(Tokenizer::from_file("/no/such/tokenizer.json"), IOError);
  CHECK_THAT(refusal("{"), Contains("tokenizer.json\" is no tokenizer.json that can be read: json: it is not JSON"));
  CHECK_THAT(refusal("{}"), Contains("model.vocab is missing, and must be an object"));
  CHECK_THAT(refusal({"model", "type"}, "Unigram"), Contains("model: the model Unigram is not supported"));
  CHECK_THAT(refusal({"model", "end_of_word_suffix"}, "</w>"), Contains("model: end_of_word_suffix is not supported"));
  CHECK_THAT(refusal({"model", "dropout"}, 0.1), Contains("dropout is not supported"));
  CHECK_THAT(refusal({"model", "ignore_merges"}, 1), Contains("model.ignore_merges must be true or false"));
  CHECK_THAT(refusal({"model", "unk_token"}, "<no>"), Contains("model.unk_token: \"<no>\" is not in the vocabulary"));
  CHECK_THAT(refusal({"model", "vocab", "a"}, -1),
             Contains("model.vocab: \"a\" must be from 0 to 2147483647 — got -1"));
  CHECK_THAT(refusal({"model", "vocab", "a"}, 1.5), Contains("model.vocab: \"a\" must be a whole number"));
  CHECK_THAT(refusal({"model", "vocab", "a"}, 0), Contains("have the same number, 0"));
  CHECK_THAT(refusal({"model", "merges"}, Json::List{"a b", "a zz"}),
             Contains("model.merges[1]: \"zz\" is not in the vocabulary"));
  CHECK_THAT(refusal({"model", "merges"}, Json::List{Json(Json::List{"q", "Q"})}),
             Contains("model.merges[0]: \"qQ\" is not in the vocabulary"));
  for (const Json& merge :
       {Json("a"), Json("a b c"), Json(" a"), Json(1), Json(Json::List{"a"}), Json(Json::List{"a", 1})})
    CHECK_THAT(refusal({"model", "merges"}, Json::List{merge}), Contains("model.merges[0] must be \"a b\" or"));
  CHECK_THAT(refusal({"normalizer", "type"}, "NFKC"), Contains("normalizer: the normalizer NFKC is not supported"));
  CHECK_THAT(refusal({"pre_tokenizer"}, Json::Object{{"type", "Metaspace"}}),
             Contains("the pre-tokenizer Metaspace is not supported"));
  CHECK_THAT(refusal({"pre_tokenizer"}, Json::Object{{"type", "Sequence"}, {"pretokenizers", Json::List{Json(1)}}}),
             Contains("pre_tokenizer.pretokenizers[0].type is missing, and must be a text"));
  CHECK_THAT(refusal({"post_processor", "type"}, "BertProcessing"), Contains("post-processor BertProcessing is not"));
  CHECK_THAT(refusal({"decoder", "type"}, "WordPiece"), Contains("the decoder WordPiece is not supported"));
  const Json byte_level = case_named("qwen2").at("tokenizer").at("decoder");
  const Json both =
      Json::Object{{"type", "Sequence"}, {"decoders", Json::List{Json::Object{{"type", "Fuse"}}, byte_level}}};
  CHECK_THAT(refusal({"decoder"}, both), Contains("decoder.decoders[1]: the decoder ByteLevel at this place is not"));

  Json::List added = case_named("qwen2").at("tokenizer").at("added_tokens").get<Json::List>();
  added[1]["id"] = added[0].at("id");
  CHECK_THAT(refusal({"added_tokens"}, added), Contains("added_tokens[1]: \"<|end|>\" and the number"));
  added[1]["single_word"] = true;
  CHECK_THAT(refusal({"added_tokens"}, added), Contains("added_tokens[1]: single_word is not supported"));
}

TEST_CASE("tokenizer: regular expressions that are not supported are named", "[tokenizer]") {
  const auto said = [](const std::string& expression) { return refusal({"pre_tokenizer"}, pattern(expression)); };
  CHECK(
      said(R"((?:a|b)?c|[^\S&&\D]{2,3}x++(?=y)|[a-z\-\x{4e00}-\x{9fa5}]{,2}\P{Lu}|\t|\p{^Han}(?i:[a-c]k)|$)").empty());
  for (const auto& [expression, text] : std::vector<std::pair<std::string, std::string>>{
           {"a.", "\".\" is not supported — at byte 1 of the pattern a."},
           {"^a", "\"^\" is not supported"},
           {"(?<=a)b", "(?< is not supported"},
           {"(?:ab)+", "a repeat of a group or repeat is not supported"},
           {"\\p{N}{1,3}+", "a repeat of a group or repeat is not supported"},
           {"a+?", "a repeat of a group or repeat is not supported"},
           {"(ab", "a ( without ) is not supported"},
           {"ab)", "an unmatched ) is not supported"},
           {"[ab", "an end within a set or escape is not supported"},
           {"[]", "[] is not supported"},
           {"[[:alpha:]]", "[: is not supported"},
           {"[b-a]", "such a range is not supported"},
           {"[a-\\s]", "such a range is not supported"},
           {"\\p{Greek}", "\\p{Greek} is not supported"},
           {"\\pL", "\\p without {…} is not supported"},
           {"\\w", "\\w is not supported"},
           {"\\", "an end within a set or escape is not supported"},
           {"\\x{110000}", "such a \\x is not supported"},
           {"a{3,2}", "such a {n,m} is not supported"},
           {"a{", "what stands here for a number is not supported"},
           {"(?i:é)", "(?i:…) of a character beyond ASCII is not supported"},
           {"(?i:[é])", "(?i:…) of a set beyond ASCII is not supported"},
           {std::string(99, '('), "so deep a nesting is not supported"},
           {std::string(99, '['), "so deep a nesting is not supported"}})
    CHECK_THAT(said(expression), Contains(text));
}

TEST_CASE("tokenizer: a hostile regular expression ends", "[tokenizer]") {
  Json file = whole(case_named("qwen2"));
  for (const char* expression : {"a*a*a*a*a*b", "(?:a|a)(?:a|a)?a?a*a*a*(?!a)b", "a*b"}) {
    file["pre_tokenizer"] = pattern(expression);
    CHECK_THROWS_AS(load_text(to_text(file)).encode(std::string(4000, 'a')), ValueError);
  }
  std::string long_one;
  for (int i = 0; i < 150'000; ++i) long_one += "(?:|b)";  // steps that would be calls within calls
  file["pre_tokenizer"] = pattern(long_one);
  CHECK_THROWS_WITH(load_text(to_text(file)), Contains("more than 10,000 steps"));
}

TEST_CASE("tokenizer: damaged files are errors or tokenizers", "[tokenizer]") {
  std::vector<Json> values{Json(), true, -1, int64_t{1} << 40, 1e300, "", "<|end|>", Json::List{}, Json::Object{}};
  int errors = 0, read = 0;
  const auto attempt = [&](const std::string& text) {
    try {
      const Tokenizer tokenizer = load_text(text);
      const std::string in = "a Café <mask> 中\xff 12 <|end|>";
      static_cast<void>(tokenizer.decode(tokenizer.encode(in)));
      ++read;
    } catch (const Error&) { ++errors; }
  };
  std::mt19937 rng(7);
  for (const char* name : {"deepseek_v3", "llama2", "qwen2"}) {
    Json file = whole(case_named(name));
    for (const char* list : {"vocab", "merges"}) {  // a few of each, so that other parts are hit, too
      if (auto* merges = std::get_if<Json::List>(&file["model"][list].value)) merges->resize(20);
    }
    const std::string text = to_text(file);
    for (int i = 0; i < 100; ++i) {
      attempt(text.substr(0, rng() % text.size()));
      std::string changed = text;
      for (int k = 0; k < 3; ++k) changed[rng() % text.size()] = "\"[]{},:0-\\ep\xff"[rng() % 13];
      attempt(changed);
    }
    // Each value in turn becomes something else.
    std::vector<Json*> places{&file};
    for (std::size_t i = 0; i < places.size(); ++i) {
      if (auto* list = std::get_if<Json::List>(&places[i]->value))
        for (Json& j : *list) places.push_back(&j);
      if (auto* object = std::get_if<Json::Object>(&places[i]->value); object && object->size() < 100)
        for (auto& [key, j] : *object) places.push_back(&j);
    }
    for (Json* place : places)
      for (int k = 0; k < 2; ++k) {
        Json before = std::exchange(*place, values[rng() % values.size()]);
        attempt(to_text(file));
        *place = std::move(before);  // the parts keep their addresses
      }
  }
  CHECK(errors > 300);
  CHECK(read > 100);
}

// SLUICE_TOKENIZERS=folder, which tests/golden/port/tokenizers.py --folder wrote.
TEST_CASE("tokenizer: a folder of families", "[.][tokenizer_folder]") {
  const char* const folder = std::getenv("SLUICE_TOKENIZERS");
  REQUIRE(folder);
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string(), at = entry.path().string();
    INFO(name);
    const Tokenizer tokenizer = Tokenizer::from_file(at + "/tokenizer.json");
    const std::string text = read_file(at + "/text"), numbers = read_file(at + "/ids");
    std::vector<int32_t> want(numbers.size() / 4);
    std::memcpy(want.data(), numbers.data(), numbers.size());
    double seconds = 1e9;
    Ids tokens;
    for (int i = 0; i < 3; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      tokens = tokenizer.encode(text);
      seconds = std::min(seconds, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    CHECK(tokens == Ids(want.begin(), want.end()));
    CHECK(tokenizer.decode(tokens) == read_file(at + "/decoded"));
    std::cout << name << std::string(17 - std::min<std::size_t>(name.size(), 16), ' ') << tokens.size() << " tokens  "
              << static_cast<double>(text.size()) / 1e6 / seconds << " MB/s\n";
  }
}
