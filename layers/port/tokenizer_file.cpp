#include <sluice/layers/port/tokenizer_tables.h>

#include <sluice/core/text/file.h>
#include <sluice/core/text/json.h>
#include <sluice/core/text/options.h>

#include <limits>

namespace sluice {

using namespace detail;

namespace {

constexpr const char* kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// A value of the file, and its place for messages.
struct Field {
  const Json* json;  // null if there is none
  std::string where;

  Field operator[](const std::string& name) const {
    return {json ? json->find(name) : nullptr, where.empty() ? name : where + "." + name};
  }
  bool absent() const { return !json || json->is_null(); }
  template <class T> const T& as(const char* kind) const {
    if (const T* v = json ? json->as<T>() : nullptr) return *v;
    fail<ValueError>(where, json ? " must be " : " is missing, and must be ", kind);
  }
  const std::string& text() const { return as<std::string>("a text"); }
  bool flag(bool otherwise) const { return absent() ? otherwise : as<bool>("true or false"); }
  const Json::Object& object() const { return as<Json::Object>("an object"); }
  const Json::List& list() const { return as<Json::List>("a list"); }
  Field item(std::size_t i) const { return {&list()[i], str(where, "[", i, "]")}; }
  int64_t whole(int64_t highest) const {
    const int64_t i = as<int64_t>("a whole number");
    if (i < 0 || i > highest) fail<ValueError>(where, " must be from 0 to ", highest, " — got ", i);
    return i;
  }
  int32_t id() const { return static_cast<int32_t>(whole(std::numeric_limits<int32_t>::max())); }
  std::string type() const { return (*this)["type"].text(); }
  [[noreturn]] void unsupported(const std::string& what) const {
    fail<ValueError>(where, ": ", what, " is not supported");
  }
};

/// Calls use(component, type) for a component, or for each of those of a Sequence.
template <class F> void each_component(const Field& f, const char* list, F&& use) {
  if (f.absent()) return;
  const std::string type = f.type();
  if (type != "Sequence") return use(f, type);
  for (std::size_t i = 0; i < f[list].list().size(); ++i) each_component(f[list].item(i), list, use);
}

Pattern read_pattern(const Field& f) {
  if (!f["Regex"].absent()) return Pattern(f["Regex"].text());
  return Pattern::literal(f["String"].text());
}

void read_model(const Field& f, Bpe& bpe) {
  if (!f["type"].absent() && f.type() != "BPE") f.unsupported(str("the model ", f.type()));
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (!f[name].absent() && !f[name].text().empty()) f.unsupported(name);
  if (!f["dropout"].absent() && !(*f["dropout"].json == Json(0.0))) f.unsupported("dropout");
  bpe.whole_words = f["ignore_merges"].flag(false);
  bpe.byte_fallback = f["byte_fallback"].flag(false);
  bpe.fuse_unknown = f["fuse_unk"].flag(false);

  const Field words = f["vocab"], pairs = f["merges"];
  const Json::Object& vocab = words.object();
  bpe.vocab.reserve(vocab.size());
  for (const auto& [token, id] : vocab) bpe.vocab.emplace(token, Field{&id, "model.vocab: \"" + token + "\""}.id());
  const auto id_of = [&](std::string_view token, const auto& where) {
    const auto it = bpe.vocab.find(token);
    if (it == bpe.vocab.end()) fail<ValueError>(where(), ": \"", token, "\" is not in the vocabulary");
    return it->second;
  };
  if (!f["unk_token"].absent()) bpe.unknown = id_of(f["unk_token"].text(), [] { return "model.unk_token"; });

  const Json::List& merges = pairs.list();
  bpe.merges.reserve(merges.size());
  for (std::size_t i = 0; i < merges.size(); ++i) {
    std::string_view left, right;
    if (const std::string* line = merges[i].as<std::string>()) {
      const std::size_t space = line->find(' ');
      if (space != std::string::npos && line->find(' ', space + 1) == std::string::npos) {
        left = std::string_view(*line).substr(0, space);
        right = std::string_view(*line).substr(space + 1);
      }
    } else if (const Json::List* pair = merges[i].as<Json::List>(); pair && pair->size() == 2) {
      if ((*pair)[0].as<std::string>() && (*pair)[1].as<std::string>()) {
        left = (*pair)[0].get<std::string>();
        right = (*pair)[1].get<std::string>();
      }
    }
    const auto where = [&] { return str("model.merges[", i, "]"); };
    if (left.empty() || right.empty()) fail<ValueError>(where(), " must be \"a b\" or [\"a\", \"b\"]");
    const uint64_t key = uint64_t(id_of(left, where)) << 32 | uint32_t(id_of(right, where));
    bpe.merges[key] = {static_cast<int32_t>(i), id_of(std::string(left).append(right), where)};
  }
}

void read_normalizer(const Field& f, const std::string& type, std::vector<TextChange>& to) {
  if (type == "NFC") to.push_back({.pattern = {}, .text = {}, .nfc = true});
  else if (type == "Replace") to.push_back({read_pattern(f["pattern"]), f["content"].text()});
  else if (type == "Prepend") to.push_back({{}, f["prepend"].text()});
  else f.unsupported(str("the normalizer ", type));
}

void read_pre_tokenizer(const Field& f, const std::string& type, TokenizerTables& to) {
  if (to.byte_level) f.unsupported("a pre-tokenizer behind ByteLevel");
  if (type == "ByteLevel") {
    to.byte_level = true;
    if (f["add_prefix_space"].flag(true)) to.splits.push_back({});
    if (f["use_regex"].flag(true)) to.splits.push_back({Pattern(kGpt2)});
  } else if (type == "Split") {
    const auto behavior = from_name<SplitBehavior>(f["behavior"].text());
    to.splits.push_back({read_pattern(f["pattern"]), behavior, f["invert"].flag(false)});
  } else if (type == "Digits") {
    const bool each = f["individual_digits"].flag(false);
    to.splits.push_back({Pattern("\\p{N}"), each ? SplitBehavior::Isolated : SplitBehavior::Contiguous});
  } else {
    f.unsupported(str("the pre-tokenizer ", type));
  }
}

void read_post_processor(const Field& f, const std::string& type, TokenizerTables& to) {
  if (type == "ByteLevel") return;  // is about offsets
  if (type != "TemplateProcessing") f.unsupported(str("the post-processor ", type));
  std::vector<int64_t> before, after;
  bool seen = false;
  for (std::size_t i = 0; i < f["single"].list().size(); ++i) {
    const Field piece = f["single"].item(i);
    if (!piece["Sequence"].absent()) {
      if (seen || piece["Sequence"]["id"].text() != "A") piece.unsupported("a second sequence");
      seen = true;
      continue;
    }
    const std::string name = piece["SpecialToken"]["id"].text();
    const Field ids = f["special_tokens"][name]["ids"];
    for (std::size_t k = 0; k < ids.list().size(); ++k) (seen ? after : before).push_back(ids.item(k).id());
  }
  if (!seen) f["single"].unsupported("a template without the sequence");
  to.prefix.insert(to.prefix.begin(), before.begin(), before.end());
  to.suffix.insert(to.suffix.end(), after.begin(), after.end());
}

void read_decoder(const Field& f, TokenDecoder& to) {
  to.absent = f.absent();
  int stage = 0;  // a component must not stand behind one of a later stage
  each_component(f, "decoders", [&](const Field& c, const std::string& type) {
    const int at = type == "Replace" ? 1 : type == "ByteFallback" ? 2 : type == "Fuse" ? 3 : type == "Strip" ? 4 : 5;
    if (at < stage || (stage == 5 || (at == 5 && stage > 0)))
      c.unsupported(str("the decoder ", type, " at this place"));
    if (at == 4 && stage < 3) c.unsupported("Strip without Fuse");
    stage = at;
    if (at == 1) to.replaces.push_back({read_pattern(c["pattern"]), c["content"].text()});
    if (at == 2) to.byte_fallback = true;
    if (at == 4) {
      if (c["stop"].whole(1) != 0) c.unsupported("Strip at the end");
      to.strip = c["content"].text();
      if (to.strip.empty()) c.unsupported("Strip of no character");
      to.strips = c["start"].whole(std::numeric_limits<int32_t>::max());
    }
    if (at == 5 && type != "ByteLevel") c.unsupported(str("the decoder ", type));
    if (at == 5) to.byte_level = true;
  });
}

void read_added(const Field& f, TokenizerTables& to) {
  const int32_t id = f["id"].id();
  const std::string text = f["content"].text();
  if (f["single_word"].flag(false)) f.unsupported("single_word");
  const auto of_model = to.bpe.vocab.find(text);
  const auto before = to.added_ids.find(text);
  const bool taken = to.added.count(id) || to.tokens.count(id);
  if (of_model == to.bpe.vocab.end() ? taken || before != to.added_ids.end() : of_model->second != id)
    fail<ValueError>(f.where, ": \"", text, "\" and the number ", id, " do not go together with another token's");
  const bool special = f["special"].flag(false);
  to.added_ids[text] = id;
  const bool normalized = f["normalized"].flag(!special);
  std::string normal = text;
  for (const TextChange& change : to.normalizers) normal = normalized ? change(normal) : normal;
  if (!normal.empty()) (normalized ? to.added_in_normalized : to.added_in_raw).add(normal, id);
  to.added[id] = {normal, special, f["lstrip"].flag(false), f["rstrip"].flag(false)};
}

}  // namespace

TokenizerTables::TokenizerTables(const std::string& text) {
  const Json json = parse_json(text);
  const Field file{&json, ""};
  read_model(file["model"], bpe);
  for (const auto& [token, id] : bpe.vocab)
    if (const auto [it, fresh] = tokens.emplace(id, token); !fresh)
      fail<ValueError>("model.vocab: \"", token, "\" and \"", it->second, "\" have the same number, ", id);
  each_component(file["normalizer"], "normalizers",
                 [&](const Field& f, const std::string& type) { read_normalizer(f, type, normalizers); });
  each_component(file["pre_tokenizer"], "pretokenizers",
                 [&](const Field& f, const std::string& type) { read_pre_tokenizer(f, type, *this); });
  each_component(file["post_processor"], "processors",
                 [&](const Field& f, const std::string& type) { read_post_processor(f, type, *this); });
  read_decoder(file["decoder"], decoder);
  const Field list = file["added_tokens"];
  for (std::size_t i = 0; !list.absent() && i < list.list().size(); ++i) read_added(list.item(i), *this);
}

Tokenizer Tokenizer::from_file(const std::string& path) {
  const std::string text = read_file(path, "tokenizer");
  try {
    return Tokenizer(std::make_shared<const TokenizerTables>(text));
  } catch (const ValueError& e) {
    fail<IOError>("tokenizer: \"", path, "\" is no tokenizer.json that can be read: ", e.what());
  }
}

}  // namespace sluice
