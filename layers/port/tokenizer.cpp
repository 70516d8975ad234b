#include <sluice/layers/port/tokenizer.h>

#include <sluice/layers/port/tokenizer_tables.h>

#include <sluice/core/error.h>

#include <deque>
#include <limits>
#include <utility>

namespace sluice {

using namespace detail;

namespace {

/// Calls use(begin, end, matches) for the matches of a pattern, which may be empty, and for what stands between them,
/// in order. An empty match right behind another match counts as none.
template <class F> void each_part(const Pattern& pattern, std::string_view text, F&& use) {
  std::size_t done = 0, last = std::string::npos;  // `last`: where a match has ended
  int64_t budget = Pattern::budget(text);
  for (std::size_t at = 0; at <= text.size();) {
    const auto [begin, end] = pattern.find(text, at, budget);
    if (begin == std::string::npos) break;
    if (begin > done) use(done, begin, false);
    if (end > begin || end != last) use(begin, end, true);
    done = at = last = end;
    if (end == begin) at = char_end(text, at);  // an empty match: go on behind the next character
  }
  if (done < text.size()) use(done, text.size(), false);
}

/// Appends the pieces of `text` to `out`, of which some may be empty; `made` keeps texts that the step makes.
void split(const SplitStep& step, std::string_view text, std::vector<std::string_view>& out,
           std::deque<std::string>& made) {
  if (!step.pattern) {
    if (!text.empty() && text[0] != ' ') text = made.emplace_back(" ").append(text);
    return out.push_back(text);
  }
  bool first = true, matched = false;  // `matched`: the part before this one matches
  each_part(*step.pattern, text, [&](std::size_t begin, std::size_t end, bool matches) {
    using enum SplitBehavior;
    matches ^= step.invert;
    const bool joins = !first && ((step.behavior == MergedWithPrevious && matches && !matched) ||
                                  (step.behavior == MergedWithNext && !matches && matched) ||
                                  (step.behavior == Contiguous && matches == matched));
    first = false;
    matched = matches;
    if (joins) out.back() = {out.back().data(), out.back().size() + end - begin};
    else if (!(matches && step.behavior == Removed)) out.push_back(text.substr(begin, end - begin));
  });
}

/// The alphabet in which byte-level tokens are written: a character for each byte, none of them white space.
struct ByteLevel {
  std::string of[256];  // UTF-8
  std::array<int, 0x144> byte{};

  ByteLevel() {
    byte.fill(-1);
    for (char32_t b = 0, other = 256; b < 256; ++b) {
      const bool visible = (b > 32 && b < 127) || (b > 160 && b != 173);
      const char32_t c = visible ? b : other++;
      append_utf8(of[b], c);
      byte[c] = static_cast<int>(b);
    }
  }
  /// Appends the bytes of a token. A token with a character outside of the alphabet stands for itself.
  void append(std::string_view token, std::string& out) const {
    const std::size_t before = out.size();
    for (const char *p = token.data(), *end = p + token.size(); p != end;) {
      const char32_t c = next_char(p);
      if (c >= byte.size() || byte[c] < 0) return out.resize(before), void(out += token);
      out += static_cast<char>(byte[c]);
    }
  }
};
const ByteLevel& byte_level() {
  static const ByteLevel alphabet;
  return alphabet;
}

bool is_space(std::string_view text, std::size_t at) {
  static const auto spaces = [] {
    auto set = std::make_unique<CharSet>();
    add_property(*set, "White_Space");
    return set;
  }();
  const char* p = text.data() + at;
  return spaces->test(next_char(p));
}

/// The text itself. ValueError if the numbers of the merges, of 32 bits, would not do for it.
std::string_view short_enough(std::string_view text) {
  if (text.size() > std::numeric_limits<int32_t>::max() / 2)
    fail<ValueError>("tokenizer: a text of ", text.size(), " bytes is too long for one call");
  return text;
}

/// One call of encode().
class Encoder {
 public:
  Encoder(const TokenizerTables& tables, const EncodeOptions& options, std::vector<int64_t>& out)
      : m_(tables), options_(options), out_(out) {}

  void encode(std::string_view raw) {
    each_added(m_.added_in_raw, raw, [&](std::string_view part) {
      for (const TextChange& change : m_.normalizers) part = short_enough(made_.emplace_back(change(part)));
      each_added(m_.added_in_normalized, part, [&](std::string_view plain) { words(plain); });
    });
  }

 private:
  /// Appends the added tokens in a text, and calls use() for what stands between them.
  template <class F> void each_added(const TokenTrie& trie, std::string_view text, F&& use) {
    std::size_t done = 0;
    for (std::size_t at = 0; at < text.size();) {
      const auto [id, length] = trie.longest(text, at);
      if (id < 0) {
        ++at;
        continue;
      }
      const AddedToken& token = m_.added.at(id);
      std::size_t begin = at, end = at += length;
      if (token.special && !options_.special_in_text) continue;
      while (token.lstrip && begin > done) {
        const std::size_t before = char_begin(text, begin - 1);
        if (!is_space(text, before)) break;
        begin = before;
      }
      while (token.rstrip && end < text.size() && is_space(text, end)) end = char_end(text, end);
      if (token.lstrip && end <= done) continue;  // white space that the token before has taken
      if (begin > done) use(text.substr(done, begin - done));
      out_.push_back(id);
      done = end;  // the next token is searched behind this one, not behind its white space, as `tokenizers` does
    }
    if (done < text.size()) use(text.substr(done));
  }

  void words(std::string_view text) {
    std::vector<std::string_view> pieces{text}, next;
    for (const SplitStep& step : m_.splits) {
      next.clear();
      for (const std::string_view piece : pieces) split(step, piece, next, made_);
      std::swap(pieces, next);
    }
    for (const std::string_view piece : pieces)
      if (!piece.empty()) word(piece);
  }

  void word(std::string_view piece) {
    const auto [known, fresh] = known_.try_emplace(piece, out_.size(), 0);
    auto& [first, count] = known->second;
    if (!fresh) {
      for (std::size_t i = 0; i < count; ++i) out_.push_back(int64_t{out_[first + i]});
      return;
    }
    if (m_.byte_level) {
      bytes_.clear();
      for (const char c : piece) bytes_ += byte_level().of[static_cast<unsigned char>(c)];
    }
    m_.bpe.encode(m_.byte_level ? bytes_ : piece, out_);
    count = out_.size() - first;
  }

  const TokenizerTables& m_;
  const EncodeOptions& options_;
  std::vector<int64_t>& out_;
  std::deque<std::string> made_;  // changed texts; pieces and known words lie in them
  std::unordered_map<std::string_view, std::pair<std::size_t, std::size_t>> known_;  // where in out_, and how many
  std::string bytes_;
};

}  // namespace

std::string detail::TextChange::operator()(std::string_view s) const {
  if (nfc) return detail::nfc(s);
  if (!pattern) return s.empty() ? std::string() : text + std::string(s);
  std::string out;
  each_part(*pattern, s, [&](std::size_t begin, std::size_t end, bool matches) {
    out += matches ? std::string_view(text) : s.substr(begin, end - begin);
  });
  return out;
}

void detail::TokenTrie::add(std::string_view text, int64_t id) {
  uint32_t node = 0;
  for (const unsigned char c : text) {
    const auto [edge, fresh] = edges.try_emplace(uint64_t{node} << 8 | c, static_cast<uint32_t>(tokens.size()));
    if (fresh) tokens.push_back(-1);
    node = edge->second;
  }
  if (tokens[node] < 0) tokens[node] = id;
  starts[static_cast<unsigned char>(text[0])] = true;
}

std::pair<int64_t, std::size_t> detail::TokenTrie::longest(std::string_view text, std::size_t at) const {
  std::pair<int64_t, std::size_t> found{-1, 0};
  if (!starts[static_cast<unsigned char>(text[at])]) return found;
  uint32_t node = 0;
  for (std::size_t i = at; i < text.size(); ++i) {
    const auto edge = edges.find(uint64_t{node} << 8 | static_cast<unsigned char>(text[i]));
    if (edge == edges.end()) break;
    node = edge->second;
    if (tokens[node] >= 0) found = {tokens[node], i + 1 - at};
  }
  return found;
}

std::vector<int64_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  std::string valid;
  take_utf8(valid, text);  // up to three times as long: a byte that is no UTF-8 becomes U+FFFD
  std::vector<int64_t> ids;
  if (options.special) ids = tables_->prefix;
  Encoder(*tables_, options, ids).encode(short_enough(valid));
  if (options.special) ids.insert(ids.end(), tables_->suffix.begin(), tables_->suffix.end());
  return ids;
}

std::string Tokenizer::decode(const std::vector<int64_t>& ids, const DecodeOptions& options) const {
  TokenStream stream(*this, options);
  std::string text;
  for (const int64_t id : ids) text += stream.push(id);
  return text + stream.finish();
}

std::optional<int64_t> Tokenizer::id_of(std::string_view token) const {
  if (const auto it = tables_->added_ids.find(token); it != tables_->added_ids.end()) return it->second;
  if (const auto it = tables_->bpe.vocab.find(token); it != tables_->bpe.vocab.end()) return it->second;
  return std::nullopt;
}

std::optional<std::string> Tokenizer::token_of(int64_t id) const {
  if (const auto it = tables_->added.find(id); it != tables_->added.end()) return it->second.text;
  if (const auto it = tables_->tokens.find(id); it != tables_->tokens.end()) return std::string(it->second);
  return std::nullopt;
}

int64_t Tokenizer::size() const {
  std::size_t n = tables_->tokens.size();
  for (const auto& [id, token] : tables_->added) n += !tables_->tokens.count(id);
  return static_cast<int64_t>(n);
}

TokenStream::TokenStream(const Tokenizer& tokenizer, const DecodeOptions& options)
    : tables_(tokenizer.tables_), options_(options), strips_(tables_->decoder.strips) {}

std::string TokenStream::push(int64_t id) {
  const TokenDecoder& decoder = tables_->decoder;
  std::string token;
  if (const auto it = tables_->added.find(id); it != tables_->added.end()) {
    token = it->second.text;
    const auto spelt = tables_->added_ids.find(token);  // none if the token is another when normalized
    if (options_.skip_special && spelt != tables_->added_ids.end() && tables_->added.at(spelt->second).special)
      return {};
  } else if (const auto of_model = tables_->tokens.find(id); of_model != tables_->tokens.end()) {
    token = of_model->second;
  } else {
    return {};
  }
  for (const TextChange& replace : decoder.replaces) token = replace(token);
  if (decoder.absent && !std::exchange(first_, false)) token = " " + token;
  if (decoder.byte_level) {
    byte_level().append(token, held_);
    std::string text;
    held_.erase(0, take_utf8(text, held_, false));
    return text;
  }
  if (decoder.byte_fallback && token.size() == 6 && token.compare(0, 3, "<0x") == 0 && token[5] == '>') {
    const auto digit = [](char c) {
      return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
    };
    if (const int high = digit(token[3]), low = digit(token[4]); high >= 0 && low >= 0) {
      held_ += static_cast<char>(high << 4 | low);
      return {};
    }
  }
  std::string text = release();
  return strip(std::move(text += token));
}

/// The text of a run of byte tokens that has ended.
std::string TokenStream::release() {
  std::string text;
  take_utf8(text, held_);
  if (!tables_->decoder.byte_level && text != held_) {
    text.clear();
    for (std::size_t i = 0; i < held_.size(); ++i) text += "\xef\xbf\xbd";
  }
  held_.clear();
  return text;
}

std::string TokenStream::strip(std::string text) {
  const std::string& what = tables_->decoder.strip;
  for (; strips_ > 0 && !text.empty(); --strips_) {
    if (text.compare(0, what.size(), what) != 0) strips_ = 1;
    else text.erase(0, what.size());
  }
  return text;
}

std::string TokenStream::finish() {
  std::string text = strip(release());
  strips_ = tables_->decoder.strips;
  first_ = true;
  return text;
}

}  // namespace sluice
