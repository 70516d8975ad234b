// Observers: the profiler, anomaly mode, summaries and counters. While an observer lives, it is told of kernel calls,
// ops and vjps. Any number may live at once, and each is told everything.
#pragma once

#include <sluice/core/scope.h>
#include <sluice/core/tensor.h>

#include <atomic>

namespace sluice {

class Node;

/// The work of one kernel call. Shapes and options alone determine flops, attention_elements and bytes.
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
  /// Compares flops, attention_elements and bytes; `widened` depends on the device.
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

/// An observer of this_thread is told what its own thread does. It must end on this thread; observers may end in any
/// order. An observer of all_threads is told from begin() to end(). Its class must call begin() at the end of its
/// constructor, and end() in its destructor. Without observers on any thread, a kernel call, an op and a vjp cost one
/// branch each.
class Observer : private NoCopy {
 public:
  enum class Of : bool { this_thread, all_threads };  // the threads that it observes
  explicit Observer(Of of = Of::this_thread);
  virtual ~Observer();

  /// A kernel call has ended.
  virtual void on_call(const KernelCall&) {}
  /// An op has computed y. node: what it recorded, or null.
  virtual void on_op([[maybe_unused]] const char* op, const Tensor&, [[maybe_unused]] Node* node) {}
  /// The vjp of a node has computed `grads`, the gradients of its inputs. For a leaf: `grads` is its updated .grad()
  /// alone.
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
// note_op() and note_vjp() tell the observers. Must only be called while observed().
[[gnu::cold]] void note_op(const char* op, const Tensor& y, Node* node);
[[gnu::cold]] void note_vjp(const Node& node, const Tensors& grads);
/// Counts storage that this thread has created; its next kernel call reports the bytes as `allocated`.
void note_allocation(std::size_t bytes);

/// Times one kernel call. Lies on the stack of its thread and tells the observers when the call ends. If an observer
/// then throws, as without memory, and the kernel did not, the call throws the observer's exception.
class ObservedCall {
 public:
  ObservedCall(const char* op, Device device);
  ~ObservedCall() noexcept(false);
  /// Notes that a bf16 tensor was copied to f32 for the kernel that runs on this thread.
  static void note_widened();
  Work work;

 private:
  const char* op_;
  Device device_;
  double start_, nested_seconds_ = 0;
  int failures_;  // uncaught exceptions when the call began
  ObservedCall* outer_;
};

}  // namespace detail

}  // namespace sluice
