// A vector whose first N elements live inside the object: a node's edges and a list of gradients cost no allocation of
// their own.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

namespace sluice {

template <class T, std::size_t N> class SmallVector {
 public:
  using value_type = T;
  using iterator = T*;
  using const_iterator = const T*;

  SmallVector() = default;
  // These delegate, so that the destructor runs if an element throws.
  SmallVector(std::initializer_list<T> xs) : SmallVector() { assign(xs.begin(), xs.end()); }
  explicit SmallVector(std::size_t n) : SmallVector() { resize(n); }
  template <class It>
  requires(!std::is_integral_v<It>) SmallVector(It first, It last) : SmallVector() { assign(first, last); }
  SmallVector(const SmallVector& o) : SmallVector() { assign(o.begin(), o.end()); }
  SmallVector(SmallVector&& o) noexcept { steal(o); }
  SmallVector& operator=(const SmallVector& o) {
    if (this != &o) {
      clear();
      assign(o.begin(), o.end());
    }
    return *this;
  }
  SmallVector& operator=(SmallVector&& o) noexcept {
    if (this != &o) {
      destroy();
      steal(o);
    }
    return *this;
  }
  ~SmallVector() { destroy(); }

  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }
  T* data() { return data_; }
  const T* data() const { return data_; }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T& operator[](std::size_t i) { return data_[i]; }
  const T& operator[](std::size_t i) const { return data_[i]; }
  T& back() { return data_[size_ - 1]; }
  const T& back() const { return data_[size_ - 1]; }

  void reserve(std::size_t n) {
    if (n > capacity_) grow(n);
  }
  template <class... A> T& emplace_back(A&&... a) {
    if (size_ == capacity_) {
      T value(std::forward<A>(a)...);  // built first: an argument may live inside this vector
      grow(2 * capacity_);
      ::new (data_ + size_) T(std::move(value));
    } else {
      ::new (data_ + size_) T(std::forward<A>(a)...);
    }
    return data_[size_++];  // counted only once it exists
  }
  void push_back(const T& v) { emplace_back(v); }
  void push_back(T&& v) { emplace_back(std::move(v)); }
  void pop_back() { data_[--size_].~T(); }
  void resize(std::size_t n) {
    reserve(n);
    for (; size_ < n; ++size_) ::new (data_ + size_) T();
    while (size_ > n) pop_back();
  }
  void clear() {
    std::destroy(begin(), end());
    size_ = 0;
  }

 private:
  T* inline_data() { return reinterpret_cast<T*>(raw_); }
  template <class It> void assign(It first, It last) {
    for (; first != last; ++first) emplace_back(*first);
  }
  void grow(std::size_t n) {
    T* fresh = std::allocator<T>().allocate(n);
    std::uninitialized_move(begin(), end(), fresh);
    std::size_t count = size_;
    destroy();
    data_ = fresh, size_ = static_cast<unsigned>(count), capacity_ = static_cast<unsigned>(n);
  }
  void steal(SmallVector& o) {  // *this is raw or destroyed
    if (o.data_ == o.inline_data()) {
      data_ = inline_data(), capacity_ = N, size_ = o.size_;
      std::uninitialized_move(o.begin(), o.end(), data_);
      o.clear();
    } else {
      data_ = o.data_, capacity_ = o.capacity_, size_ = o.size_;
      o.data_ = o.inline_data(), o.capacity_ = N, o.size_ = 0;
    }
  }
  void destroy() {
    clear();
    if (data_ != inline_data()) std::allocator<T>().deallocate(data_, capacity_);
    data_ = inline_data(), capacity_ = N;
  }

  alignas(T) std::byte raw_[N * sizeof(T)];
  T* data_ = inline_data();
  unsigned size_ = 0, capacity_ = N;
};

}  // namespace sluice
