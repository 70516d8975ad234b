// Observers: what the profiler, anomaly mode, summaries and counters are told while they live. Any number may live at
// once, and each is told everything.
#pragma once

#include <sluice/core/scope.h>
#include <sluice/core/tensor.h>

#include <atomic>

namespace sluice {

class Node;

/// What one kernel call does: known from shapes and options alone, but for the copies.
struct Work {
  int64_t flops = 0;               // of matrix products, a multiply-add counting 2
  int64_t attention_elements = 0;  // entries of attention maps; causal maps count in full, a window counts W a query
  int64_t bytes = 0;               // of the tensors among the arguments
  int64_t widened = 0;             // f32 copies of bf16 tensors, made for kernels that take no bf16 (kernel_bf16.h)
  const char* means = nullptr;     // the implementation, where the kernel has a choice

  /// Adds the numbers; `means` stays.
  Work& operator+=(const Work& o) {
    flops += o.flops, attention_elements += o.attention_elements, bytes += o.bytes, widened += o.widened;
    return *this;
  }
  /// The numbers of the call are equal; copies depend on the device.
  friend bool operator==(const Work& a, const Work& b) {
    return a.flops == b.flops && a.attention_elements == b.attention_elements && a.bytes == b.bytes;
  }
};

namespace detail {

/// The time of a steady clock, in seconds.
double steady_seconds();

/// One finished kernel call. Calls inside a kernel are reported before the outer call, with `nested` set; the outer
/// call's self_seconds excludes their time.
struct KernelCall {
  const char* op;
  Device device;
  Work work;
  double start, seconds, self_seconds;  // start: of steady_seconds()
  int64_t allocated;                    // bytes of storage created on this thread since the previous call
  bool nested;
};

/// While it lives, is told what its own thread does; it must end on this thread, but observers need not end in order.
/// One of all threads is told from begin() to end(), which its class calls when it is whole. Without observers on any
/// thread, a kernel call, an op and a vjp cost one branch each.
class Observer : private NoCopy {
 public:
  enum class Of : bool { this_thread, all_threads };  // whose calls it is told
  explicit Observer(Of of = Of::this_thread);
  virtual ~Observer();

  /// A kernel call has ended.
  virtual void on_call(const KernelCall&) {}
  /// An op has computed y. node: what it recorded, or null.
  virtual void on_op([[maybe_unused]] const char* op, const Tensor&, [[maybe_unused]] Node* node) {}
  /// The vjp of a node has computed the gradients of its inputs; or a leaf has its gradient, the only one of `grads`.
  virtual void on_vjp(const Node&, [[maybe_unused]] const Tensors& grads) {}
  /// The paths of modules that this observer knows, or null. ModuleScope::path() asks all observers.
  virtual const ModuleNames* modules() const { return nullptr; }

 protected:
  void begin();
  void end();

 private:
  Of of_;
  Observer* outer_ = nullptr;
  template <class F> friend void each_observer(F f);
};

/// Counts the work of this thread's kernel calls: on meta without computing, on other devices while computing.
///
///     WorkCounter counter;
///     layer(to(x, meta));
///     counter.work().flops;
class WorkCounter final : public Observer {
 public:
  const Work& work() const { return work_; }
  int64_t calls() const { return calls_; }

 private:
  void on_call(const KernelCall& call) override;
  Work work_;
  int64_t calls_ = 0;
};

/// Number of observers on all threads.
extern constinit std::atomic<int> observer_count;
inline bool observed() { return observer_count.load(std::memory_order_relaxed) != 0; }
// These tell the observers. Must only be called while observed().
[[gnu::cold]] void note_op(const char* op, const Tensor& y, Node* node);
[[gnu::cold]] void note_vjp(const Node& node, const Tensors& grads);
/// Storage was created; the next kernel call tells it.
void note_allocation(std::size_t bytes);

/// Times one kernel call. Lies on the stack of its thread and tells the observers when the call ends. What an observer
/// throws then, as without memory, the call throws.
class ObservedCall {
 public:
  ObservedCall(const char* op, Device device);
  ~ObservedCall() noexcept(false);
  /// A kernel on this thread had a bf16 tensor copied to f32.
  static void note_widened();
  Work work;

 private:
  const char* op_;
  Device device_;
  double start_, nested_seconds_ = 0;
  int failures_;  // exceptions on their way when the call began
  ObservedCall* outer_;
};

}  // namespace detail

}  // namespace sluice
