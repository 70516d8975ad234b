// Shape: the sizes of a tensor's dimensions. At most kMaxRank of them, stored in place.
#pragma once

#include <sluice/core/error.h>

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <span>

namespace sluice {

/// Largest rank of a tensor.
inline constexpr int kMaxRank = 8;

/// A short list of int64 values: sizes, strides or dims. Value type, no allocation.
class Shape {
 public:
  Shape() = default;
  /// ShapeError beyond kMaxRank entries.
  Shape(std::initializer_list<int64_t> xs) : Shape(std::span(xs.begin(), xs.size())) {}
  /// One size or dim: zeros(3), sum(x, 1).
  template <std::integral I>
  requires(!std::same_as<I, bool>) Shape(I x) : Shape({static_cast<int64_t>(x)}) {}
  explicit Shape(std::span<const int64_t> xs) {
    for (int64_t x : xs) push_back(x);
  }
  /// Copies only the used entries, one word at a time: a vector load of words that were stored singly just before would
  /// wait for those stores, and every op copies shapes several times.
  Shape(const Shape& o) : rank_(o.rank_) { copy_from(o); }
  Shape& operator=(const Shape& o) {
    rank_ = o.rank_;
    copy_from(o);
    return *this;
  }
  /// `rank` entries, each `value`.
  static Shape filled(int rank, int64_t value) {
    Shape s;
    for (int i = 0; i < rank; ++i) s.push_back(value);
    return s;
  }

  /// Number of entries.
  int rank() const { return rank_; }
  /// True for the shape of a scalar.
  bool empty() const { return rank_ == 0; }
  /// Entry i, from 0: unchecked.
  int64_t operator[](int i) const { return v_[i]; }
  int64_t& operator[](int i) { return v_[i]; }
  /// The entries in order, for loops.
  const int64_t* begin() const { return v_; }
  const int64_t* end() const { return v_ + rank_; }
  int64_t* begin() { return v_; }
  int64_t* end() { return v_ + rank_; }
  /// The last entry: unchecked.
  int64_t back() const { return v_[rank_ - 1]; }

  /// Adds an entry at the end; ShapeError beyond kMaxRank.
  void push_back(int64_t x) {
    if (rank_ == kMaxRank) fail("shape: more than ", kMaxRank, " dimensions");
    v_[rank_++] = x;
  }
  /// Adds an entry before entry `at`.
  void insert(int at, int64_t x) {
    push_back(0);
    for (int i = rank_ - 1; i > at; --i) v_[i] = v_[i - 1];
    v_[at] = x;
  }
  /// Removes entry `at`.
  void erase(int at) {
    for (int i = at; i + 1 < rank_; ++i) v_[i] = v_[i + 1];
    --rank_;
  }

  /// Product of the sizes; 1 for rank 0. Shapes of tensors cannot overflow; for others see checked_numel().
  int64_t numel() const {
    int64_t n = 1;
    for (int64_t x : *this) n *= x;
    return n;
  }
  /// The same number of entries, and the same entries.
  bool operator==(const Shape& o) const {
    if (rank_ != o.rank_) return false;
    for (int i = 0; i < rank_; ++i)
      if (v_[i] != o.v_[i]) return false;
    return true;
  }

 private:
  void copy_from(const Shape& o) {
    static_assert(kMaxRank == 8);
    switch (rank_) {
      case 8: v_[7] = o.v_[7]; [[fallthrough]];
      case 7: v_[6] = o.v_[6]; [[fallthrough]];
      case 6: v_[5] = o.v_[5]; [[fallthrough]];
      case 5: v_[4] = o.v_[4]; [[fallthrough]];
      case 4: v_[3] = o.v_[3]; [[fallthrough]];
      case 3: v_[2] = o.v_[2]; [[fallthrough]];
      case 2: v_[1] = o.v_[1]; [[fallthrough]];
      case 1: v_[0] = o.v_[0]; [[fallthrough]];
      default: break;
    }
  }

  int rank_ = 0;
  int64_t v_[kMaxRank] = {};  // only the first rank_ are meaningful; one vector store clears them
};

void append_text(std::string& s, const Shape& shape);  // "[2,3]"

// Sizes given by a caller are multiplied and added here, once: overflow throws ShapeError naming `op`. Checked sizes
// need no further check, because strides, byte counts and sums of two lengths then fit int64.

/// Most elements of a tensor, a view, or the grid that a kernel walks; empty dims count as 1.
inline constexpr int64_t kMaxElements = int64_t{1} << 56;
/// a·b and a + b. ShapeError for negative operands and for results beyond kMaxElements.
int64_t checked_mul(std::string_view op, int64_t a, int64_t b);
int64_t checked_add(std::string_view op, int64_t a, int64_t b);
/// Number of elements of a shape. ShapeError for a negative size and beyond kMaxElements, empty dims counted as 1.
int64_t checked_numel(std::string_view op, const Shape& shape);
/// ⌈a/b⌉ for a >= 0 and b > 0.
constexpr int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }
/// The least multiple of b that is not below a, for a >= 0 and b > 0.
constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

/// NumPy broadcasting: sizes are aligned at the right; 1 stretches. Throws ShapeError naming `op`.
Shape broadcast(std::string_view op, const Shape& a, const Shape& b);
/// True if `shape` and `full` broadcast to `full`.
bool stretches_to(const Shape& shape, const Shape& full);

/// Maps dim in [-rank, rank) to [0, rank). Throws ShapeError naming `op`.
int wrap_dim(std::string_view op, int64_t dim, int rank);

/// Sorted, wrapped, distinct dims; an empty list means all of them.
Shape wrap_dims(std::string_view op, const Shape& dims, int rank);

}  // namespace sluice
