// What a stream keeps of its earlier tokens. step() in layers/nn/pass.h continues a stream.
#pragma once

#include <sluice/core/memory/no_copy.h>
#include <sluice/core/node.h>
#include <sluice/layers/nn/kv_cache.h>

#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace sluice {

/// The memory of all layers of one model, in the order in which they run. A Stream is a value: a copy goes on by itself
/// (beam search). It begins empty.
class Stream {
 public:
  /// A stream that has been moved is empty again.
  Stream() = default;
  Stream(const Stream&) = default;
  Stream& operator=(const Stream&) = default;
  Stream(Stream&& other) { *this = std::move(other); }
  Stream& operator=(Stream&& other);
  /// Number of tokens so far.
  int64_t length() const { return length_; }
  /// length(), for a layer that is called with `tokens` tokens. ValueError, beginning with `layer`, unless these are
  /// all tokens of the running step: otherwise positions would differ from those of the full pass.
  int64_t position(int64_t tokens, const char* layer) const;
  /// Makes room for `tokens` tokens in all, counted from the first. A cache of all tokens takes this room at once when
  /// it is next full, and copies nothing until then. Throws ValueError for a number below 0 or above 2⁵⁶.
  void reserve(int64_t tokens);
  int64_t reserved() const { return reserved_; }
  /// How many numbers the stream keeps, for all sequences of the batch together.
  int64_t numel() const;
  /// Bytes of the memory that the stream keeps, including memory that it shares.
  int64_t bytes() const;
  /// Calls f with each tensor that the stream keeps; for a cache with its rows, including those only reserved.
  void each_tensor(const std::function<void(const Tensor&)>& f) const;

  /// What one place of one layer keeps. A step that fails is taken back: replace `tensors`, do not write into them, and
  /// append to `cache`.
  struct Kept {
    Kept(std::string of_layer, std::string of_what) : layer(std::move(of_layer)), what(std::move(of_what)) {}
    std::string layer;                 // "gla"
    std::string what;                  // "state": what the layer keeps here
    std::vector<Tensor> tensors = {};  // sums and counts, the last rows, a context, the mask of keys
    KvCache cache = {};                // rows of the tokens

    /// Leaves the cache empty.
    void clear_rows();

   private:
    friend class Stream;
    friend class StreamStep;
    struct Before {
      std::vector<Tensor> tensors;
      int64_t rows;
      std::optional<KvCache> cleared;
    };
    std::optional<Before> before_ = std::nullopt;  // while a step runs that has come here
  };
  /// The next place of the step that runs, valid until the step ends. ValueError for a stream of other layers.
  Kept& next(const char* layer, const char* what);

  friend void to(Stream& stream, Device device);
  friend Stream of_sequences(const Stream& stream, const Tensor& index);
  friend void crop(Stream& stream, int64_t length);
  friend void save(const Stream& stream, const std::string& path);
  friend Stream load_stream(const std::string& path);

 private:
  friend class StreamStep;
  /// ValueError, beginning with `op`, while a step runs.
  void check_idle(const char* op) const;

  std::deque<Kept> kept_;  // a layer holds a reference to its place while others are made
  std::size_t next_ = 0;   // the place that comes next in this step
  std::size_t known_ = 0;  // places of earlier steps
  int64_t length_ = 0;
  int64_t reserved_ = 0;
  /// Tokens of the step that runs; −1: none. A copy that is made meanwhile runs none.
  struct Running {
    int64_t tokens = -1;
    Running() = default;
    Running(const Running&) {}
    Running& operator=(const Running&) { return *this; }
  } running_;
};

/// Moves what the stream keeps to a device; if a tensor cannot go there, none goes. ValueError while a step runs.
void to(Stream& stream, Device device);
/// The stream of the sequences `index` i64 [m] of the batch, in this order, some of them several times: beams that go
/// on, or several answers to one prompt. ValueError for an index outside the batch, and while a step runs.
Stream of_sequences(const Stream& stream, const Tensor& index);
/// Takes back all tokens behind the first `length`, such as drafts that a larger model has refused (Leviathan et al.
/// 2023). 0 empties the stream. ValueError, and the stream stays as it is, for a length outside [0, stream.length()],
/// while a step runs, and for a layer that keeps sums of tokens or a window that is full: copy such a stream before the
/// step.
void crop(Stream& stream, int64_t length);
/// Writes a stream to a safetensors file; reads it again. Throws IOError for a file that holds no stream, and
/// ValueError while a step runs.
void save(const Stream& stream, const std::string& path);
Stream load_stream(const std::string& path);

namespace detail {
/// m of the x [batch, m, …] that step() is given. Throws ShapeError for fewer dims, ValueError if it is undefined.
int64_t step_tokens(const Tensor& x);
}  // namespace detail

/// One step of a stream while its forward pass runs; see step(). A step that does not come to its end changes nothing.
class StreamStep : private NoCopy {
 public:
  /// ValueError while another step of the stream runs.
  StreamStep(Stream& stream, int64_t tokens);
  ~StreamStep();
  /// ValueError if layers of earlier steps did not run in this one.
  void end();

 private:
  NoGrad without_history_;
  Stream& stream_;
  bool ended_ = false;
};

}  // namespace sluice
