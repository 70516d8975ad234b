// Intrusive reference counting: one word in the object, one pointer in the handle.
#pragma once

#include <sluice/core/memory/no_copy.h>

#include <atomic>
#include <cstdint>
#include <utility>

namespace sluice {

class RefCounted : private NoCopy {
 public:
  uint32_t use_count() const { return count_.load(std::memory_order_acquire); }
  /// An object that was never retained has no other owner, so the first reference needs no locked instruction.
  void retain() const {
    if (count_.load(std::memory_order_relaxed) == 0) count_.store(1, std::memory_order_relaxed);
    else share();
  }
  /// Adds a reference to one that exists.
  void share() const { count_.fetch_add(1, std::memory_order_relaxed); }
  /// True when this was the last reference; the caller then disposes of the object.
  bool drop() const {
    // A sole owner cannot race, so the common case needs no locked instruction.
    if (count_.load(std::memory_order_acquire) == 1) {
      count_.store(0, std::memory_order_relaxed);
      return true;
    }
    return count_.fetch_sub(1, std::memory_order_acq_rel) == 1;
  }

 private:
  mutable std::atomic<uint32_t> count_{0};
};

/// Owning pointer to a RefCounted T. The last one calls `dispose(T*)`, found by argument-dependent lookup.
template <class T> class Ref {
 public:
  Ref() = default;
  Ref(std::nullptr_t) {}
  explicit Ref(T* p) : p_(p) {
    if (p_) p_->retain();
  }
  Ref(const Ref& o) : p_(o.p_) {
    if (p_) p_->share();
  }
  Ref(Ref&& o) noexcept : p_(std::exchange(o.p_, nullptr)) {}
  template <class U>
  requires std::is_convertible_v<U*, T*> Ref(const Ref<U>& o) : Ref(static_cast<T*>(o.get())) {}
  Ref& operator=(Ref o) noexcept {
    std::swap(p_, o.p_);
    return *this;
  }
  ~Ref() {
    if (p_) release(p_);
  }

  void reset() {
    if (T* p = std::exchange(p_, nullptr)) release(p);
  }
  T* get() const { return p_; }
  T* operator->() const { return p_; }
  T& operator*() const { return *p_; }
  explicit operator bool() const { return p_ != nullptr; }
  bool operator==(const Ref& o) const { return p_ == o.p_; }

 private:
  /// Not inlined: the end of each tensor in each function would be a tenth of the library's code.
  [[gnu::noinline]] static void release(T* p) noexcept {
    if (p->drop()) dispose(p);
  }
  T* p_ = nullptr;
};

}  // namespace sluice
