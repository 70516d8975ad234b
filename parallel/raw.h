// The collectives on bytes of contiguous tensors, without history; ops and background calls share them. They must run
// inside Group::call or Group::start, after Group::agree, on tensors of the CPU or of a device whose ranks are linked.
#pragma once

#include <sluice/core/kernel/kernel.h>
#include <sluice/core/node.h>
#include <sluice/core/tensor.h>
#include <sluice/parallel/group.h>
#include <sluice/parallel/reduce.h>

#include <utility>
#include <vector>

namespace sluice::detail {

/// Records a call and the bytes that it sent for profiles. Throws at its end what an observer throws then.
class ObservedTraffic {
 public:
  ObservedTraffic(const char* op, const Group& group) : group_(group), before_(group.sent_bytes()), call_(op, cpu) {}
  ~ObservedTraffic() noexcept(false) { call_.work.bytes = group_.sent_bytes() - before_; }

 private:
  const Group& group_;
  const int64_t before_;
  ObservedCall call_;
};

/// The device on which ranks exchange tensors of `device`: `device` itself if the ranks' devices are linked, else cpu.
inline Device meeting_place(Group& group, Device device) {
  return device == cpu || device == meta || group.linked(device) ? device : cpu;
}
inline std::size_t bytes_of(const Tensor& x) { return static_cast<std::size_t>(x.numel() * size_of(x.dtype())); }
/// `shape` with another length along dim.
inline Shape resized(Shape shape, int64_t dim, int64_t length) {
  shape[static_cast<int>(dim)] = length;
  return shape;
}
/// The text of a call, marked if the tensor lies on a GPU: all ranks must exchange from devices, or all from hosts.
inline std::string on_device(std::string text, Device device) {
  return device == cpu || device == meta ? text : text + " on a GPU";
}

inline Outgoing outgoing(int to, const Tensor& x) { return {to, x.numel() ? address_of(x) : nullptr, bytes_of(x)}; }
inline Incoming incoming(int from, const Tensor& x) { return {from, x.numel() ? address_of(x) : nullptr, bytes_of(x)}; }

/// y, with a history if `anyone` of the ranks has one for its x. A constant gets a history, too: this rank's backward
/// pass must call the adjoint, because those of the others do.
template <class Adjoint> Tensor recorded(const char* op, Tensor y, const Tensor& x, bool anyone, Adjoint adjoint) {
  if (!grad_enabled() || !anyone) return y;
  const Tensor input = x.requires_grad() ? x : x.detach().requires_grad_();
  return record(op, std::move(y), {input}, {}, std::move(adjoint));
}

/// x becomes the op over all ranks' x.
void all_reduce_raw(Group& group, Tensor& x, ReduceOp op);
/// x becomes the x of rank `root`.
void broadcast_raw(Group& group, Tensor& x, int root);
/// pieces[r] becomes x of rank r; every rank must know the sizes. pieces[rank] is left alone and may be undefined.
void all_gather_raw(Group& group, const char* kind, const Tensor& x, const std::vector<Tensor>& pieces);
/// y becomes the op over all ranks' parts[rank()], in the order of ranks; parts[r] has the shape of rank r's result. y
/// may be this rank's parts[rank()]. Counted as `kind`.
void reduce_scatter_raw(Group& group, const char* kind, ReduceOp op, const std::vector<Tensor>& parts, const Tensor& y);
/// x goes to rank `to`, y comes from rank `from`; −1: nowhere.
void shift_raw(Group& group, const Tensor& x, int to, Tensor& y, int from);

}  // namespace sluice::detail
