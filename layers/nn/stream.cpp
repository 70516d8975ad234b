#include <sluice/layers/nn/stream.h>

#include <sluice/core/operands.h>
#include <sluice/core/text/json.h>
#include <sluice/core/text/safetensors.h>
#include <sluice/core/scope.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/index/gather.h>
#include <sluice/parallel/sequence.h>

#include <set>

namespace sluice {

// -- one step -------------------------------------------------------------------------------------------------

int64_t detail::step_tokens(const Tensor& x) {
  detail::check_defined("step", x);
  if (x.rank() < 2) fail("step: got x=", x, "; need the next tokens of each sequence, [batch, m, …]");
  return x.dim(1);
}

StreamStep::StreamStep(Stream& stream, int64_t tokens) : stream_(stream) {
  detail::not_cut("step", "a stream has its tokens to itself; call the layer with a piece of the sequence");
  if (stream.running_.tokens >= 0)
    fail<ValueError>("step: a step of this stream runs already; a model calls its layers with its pass");
  stream.next_ = 0, stream.known_ = stream.kept_.size(), stream.running_.tokens = tokens;
}

StreamStep::~StreamStep() {
  std::deque<Stream::Kept>& all = stream_.kept_;
  if (!ended_) all.erase(all.begin() + static_cast<std::ptrdiff_t>(stream_.known_), all.end());
  for (Stream::Kept& k : all) {
    if (k.before_ && !ended_) {
      k.tensors = std::move(k.before_->tensors);
      if (k.before_->cleared) k.cache = std::move(*k.before_->cleared);
      k.cache.take_back(k.before_->rows);
    }
    k.before_.reset();
  }
  stream_.running_.tokens = -1;
}

void StreamStep::end() {
  if (stream_.next_ != stream_.kept_.size()) {
    const Stream::Kept& k = stream_.kept_[stream_.next_];
    fail<ValueError>("step: a stream of another model: this one ends before the ", k.what, " of a layer ", k.layer);
  }
  stream_.length_ += stream_.running_.tokens, ended_ = true;
  for (Stream::Kept& k : stream_.kept_)  // of a long prompt only the window stays
    if (k.cache.window > 0 && k.cache.window < stream_.running_.tokens) k.cache.trim();
}

Stream& Stream::operator=(Stream&& other) {
  if (this == &other) return *this;
  kept_ = std::exchange(other.kept_, {});
  next_ = std::exchange(other.next_, 0), known_ = std::exchange(other.known_, 0);
  length_ = std::exchange(other.length_, 0), reserved_ = std::exchange(other.reserved_, 0);
  return *this;
}

int64_t Stream::position(int64_t tokens, const char* layer) const {
  if (running_.tokens >= 0 && tokens != running_.tokens)
    fail<ValueError>(layer, ": is called with ", tokens, " tokens in a step of ", running_.tokens,
                     "; a layer that reads positions must see every token of a stream");
  return length_;
}

Stream::Kept& Stream::next(const char* layer, const char* what) {
  const bool exists = next_ < kept_.size();
  if (!exists && length_ == 0) kept_.emplace_back(layer, what);
  if (next_ == kept_.size() || kept_[next_].layer != layer || kept_[next_].what != what)
    fail<ValueError>("step: a stream of another model, or of layers in another order; here it has ",
                     exists ? str("the ", kept_[next_].what, " of a layer ", kept_[next_].layer) : "nothing",
                     ", not the ", what, " of a layer ", layer);
  Kept& k = kept_[next_++];
  if (next_ <= known_) k.before_.emplace(Kept::Before{k.tensors, k.cache.length, std::nullopt});
  return k;
}

void Stream::Kept::clear_rows() {
  if (before_ && !before_->cleared) before_->cleared = std::move(cache);
  cache = {};
}

// -- what it keeps ----------------------------------------------------------------------------------------------

void Stream::each_tensor(const std::function<void(const Tensor&)>& f) const {
  for (const Kept& k : kept_) {
    for (const Tensor& t : k.tensors)
      if (t.defined()) f(t);
    const bool whole = k.cache.reserved > 0 || k.cache.buffers.empty();
    for (const Tensor& t : whole ? k.cache.buffers : k.cache.rows()) f(t);
  }
}

static constexpr int64_t kTokens = int64_t{1} << 56;  // more than any memory holds

void Stream::reserve(int64_t tokens) {
  if (tokens < 0 || tokens > kTokens) fail<ValueError>("stream: cannot reserve room for ", tokens, " tokens");
  reserved_ = tokens;
}

int64_t Stream::numel() const {
  int64_t numbers = 0;
  each_tensor([&](const Tensor& x) { numbers += x.numel(); });
  return numbers;
}

int64_t Stream::bytes() const {
  std::set<const Storage*> seen;
  int64_t sum = 0;
  each_tensor([&](const Tensor& x) {
    const Storage& memory = *x.impl().storage;
    if (seen.insert(&memory).second) sum += static_cast<int64_t>(memory.bytes());
  });
  return sum;
}

void Stream::check_idle(const char* op) const {
  if (running_.tokens >= 0) fail<ValueError>(op, ": a step of the stream runs");
}

void to(Stream& stream, Device device) {
  stream.check_idle("to");
  std::deque<Stream::Kept> moved = stream.kept_;  // the stream stays as it is until all tensors are there
  for (Stream::Kept& k : moved)
    for (std::vector<Tensor>* list : {&k.tensors, &k.cache.buffers})
      for (Tensor& t : *list)
        if (t.defined()) t = to(t, device);
  stream.kept_ = std::move(moved);
}

Stream of_sequences(const Stream& stream, const Tensor& index) {
  stream.check_idle("of_sequences");
  detail::check_defined("of_sequences", {{"index", index}});
  if (index.rank() != 1) fail("of_sequences: the index must be i64 [m] — got ", index);
  NoGrad guard;
  Stream chosen = stream;
  const auto choose = [&](Tensor& t) { t = index_select(t, 0, to(index, t.device())); };
  for (Stream::Kept& k : chosen.kept_) {
    for (Tensor& t : k.tensors)
      if (t.defined()) choose(t);
    if (!k.cache.buffers.empty()) k.cache.buffers = k.cache.rows(), k.cache.first = k.cache.length - k.cache.stored();
    for (Tensor& t : k.cache.buffers) choose(t);
  }
  return chosen;
}

void crop(Stream& stream, int64_t length) {
  stream.check_idle("crop");
  const int64_t lost = stream.length_ - length;
  if (length < 0 || lost < 0)
    fail<ValueError>("crop: got length ", length, " for a stream of ", stream.length_, " tokens");
  std::deque<Stream::Kept> cropped;
  if (length > 0) cropped = stream.kept_;
  for (Stream::Kept& k : cropped) {
    if (lost == 0 || k.what == "context") continue;
    const auto refuse = [&](const char* why) {
      fail<ValueError>("crop: the ", k.what, " of a layer ", k.layer, " ", why, "; copy the stream before the step");
    };
    if (k.what != "rows" || k.cache.length != stream.length_) refuse("cannot go back to fewer tokens");
    if (k.cache.stored() < stream.length_) refuse("of a full window have lost those before it");
    k.cache.take_back(length);
    for (Tensor& mask : k.tensors)
      if (mask.defined()) mask = narrow(mask, 1, 0, length);
  }
  stream.kept_ = std::move(cropped), stream.length_ = length;
}

// -- files ------------------------------------------------------------------------------------------------------

namespace {

constexpr const char* kFormat = "sluice stream 1";

std::string name_in_file(std::size_t place, const char* list, std::size_t i) { return str(place, '.', list, '.', i); }

/// How many places the rows of a cache are turned in a file: there the row of position p of a full window W is p mod W.
int64_t turn_in_file(const KvCache& cache) {
  return cache.window > 0 ? (cache.length - cache.stored()) % cache.window : 0;
}

}  // namespace

void save(const Stream& stream, const std::string& path) {
  stream.check_idle("save");
  SafeTensors file;
  Json::List places;
  for (std::size_t p = 0; p < stream.kept_.size(); ++p) {
    const Stream::Kept& k = stream.kept_[p];
    for (std::size_t i = 0; i < k.tensors.size(); ++i)
      if (k.tensors[i].defined()) file.tensors[name_in_file(p, "tensor", i)] = contiguous(to(k.tensors[i], cpu));
    for (std::size_t i = 0; i < k.cache.buffers.size(); ++i)
      file.tensors[name_in_file(p, "ring", i)] = roll(to(k.cache.rows()[i], cpu), turn_in_file(k.cache), 2);
    places.push_back(Json::Object{{"layer", k.layer},
                                  {"what", k.what},
                                  {"tensors", static_cast<int64_t>(k.tensors.size())},
                                  {"rings", static_cast<int64_t>(k.cache.buffers.size())},
                                  {"rows", k.cache.length},
                                  {"window", k.cache.window},
                                  {"reserved", k.cache.reserved}});
  }
  file.metadata["format"] = kFormat;
  file.metadata["stream"] =
      to_text(Json::Object{{"length", stream.length_}, {"reserved", stream.reserved_}, {"places", std::move(places)}});
  save_safetensors(path, file, "save");
}

Stream load_stream(const std::string& path) {
  const SafeTensors file = load_safetensors(path, {}, "load_stream");
  const auto refuse = [&](const auto&... why) { fail<IOError>("load_stream: '", path, "': ", why...); };
  const auto described = file.metadata.find("stream");
  if (file.format() != kFormat || described == file.metadata.end()) refuse("not the file of a stream");
  const auto number = [&](const Json& from, const char* name, int64_t most) {
    const int64_t n = from.at(name).get<int64_t>();
    if (n < 0 || n > most) refuse(name, " is ", n);
    return n;
  };
  constexpr int64_t kTensors = 16;
  Stream stream;
  try {
    const Json all = parse_json(described->second);
    stream.length_ = number(all, "length", kTokens);
    if (all.find("reserved")) stream.reserved_ = number(all, "reserved", kTokens);  // of a newer file
    for (const Json& place : all.at("places").get<Json::List>()) {
      const std::size_t p = stream.kept_.size();
      Stream::Kept k(place.at("layer").get<std::string>(), place.at("what").get<std::string>());
      const auto tensors = [&](const char* list, const char* plural) {
        std::vector<Tensor> read(static_cast<std::size_t>(number(place, plural, kTensors)));
        for (std::size_t i = 0; i < read.size(); ++i) {
          const auto it = file.tensors.find(name_in_file(p, list, i));
          if (it != file.tensors.end()) read[i] = it->second;
        }
        return read;
      };
      k.tensors = tensors("tensor", "tensors"), k.cache.buffers = tensors("ring", "rings");
      k.cache.length = number(place, "rows", kTokens), k.cache.window = number(place, "window", kTokens);
      k.cache.reserved = number(place, "reserved", kTokens);
      k.cache.first = k.cache.length - k.cache.stored();
      if (k.cache.buffers.empty() && k.cache.length > 0) refuse("place ", p, " has no rows");
      for (Tensor& t : k.cache.buffers) {
        if (!t.defined() || t.rank() != 4 || t.dim(2) != k.cache.stored() || t.dim(0) != k.cache.buffers[0].dim(0))
          refuse("place ", p, ": needs rows [batch, heads, ", k.cache.stored(), ", width]");
        if (const int64_t turn = turn_in_file(k.cache)) t = roll(t, -turn, 2);
      }
      stream.kept_.push_back(std::move(k));
    }
  } catch (const ValueError& e) { refuse(e.what()); }
  return stream;
}

}  // namespace sluice
