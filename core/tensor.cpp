#include <sluice/core/tensor.h>

#include <sluice/core/kernel/kernel.h>
#include <sluice/core/node.h>
#include <sluice/core/operands.h>
#include <sluice/core/kernel/strided.h>

#include <algorithm>
#include <cmath>

namespace sluice {

TensorImpl::TensorImpl(Ref<Storage> s, const Layout& l, DType t)
    : storage(std::move(s)), layout(l), dtype(t), contiguous(layout.is_contiguous()) {}
TensorImpl::TensorImpl(Ref<Storage> s, const Shape& shape, DType t)
    : storage(std::move(s)), layout(shape), dtype(t), contiguous(true) {}
TensorImpl::~TensorImpl() = default;
void dispose(TensorImpl* p) { delete p; }

Tensor::Tensor(float value) : Tensor(empty({})) { *mutable_data<float>() = value; }

Tensor::Tensor(std::initializer_list<float> row) : Tensor(empty({static_cast<int64_t>(row.size())})) {
  std::copy(row.begin(), row.end(), mutable_data<float>());
}

Tensor::Tensor(std::initializer_list<std::initializer_list<float>> rows) {
  int64_t n = static_cast<int64_t>(rows.size());
  int64_t m = n ? static_cast<int64_t>(rows.begin()->size()) : 0;
  *this = empty({n, m});
  float* p = mutable_data<float>();
  for (const auto& row : rows) {
    if (static_cast<int64_t>(row.size()) != m) fail("tensor: rows of different lengths — got ", m, " and ", row.size());
    p = std::copy(row.begin(), row.end(), p);
  }
}

Tensor empty(const Shape& shape, TensorOptions options, const char* op) {
  const int64_t n = checked_numel(op, shape) * size_of(options.dtype);
  if (n > int64_t{1} << 46) fail(op, ": shape ", shape, " asks for more memory than any machine has");
  const auto storage = [&] {
    try {
      return Storage::create(static_cast<std::size_t>(n), options.device);
    } catch (const MemoryError& e) {  // knows bytes alone; most ops leave their name out here
      const std::string name = std::string_view(op) == "empty" ? "" : str(op, ": ");
      throw MemoryError(str(name, e.what(), " — for ", options.dtype, shape));
    }
  };
  return Tensor(Ref<TensorImpl>(new TensorImpl(storage(), shape, options.dtype)));
}

Tensor alias(const Tensor& x, const Layout& layout) {
  return Tensor(Ref<TensorImpl>(new TensorImpl(x.impl().storage, layout, x.dtype())));
}

Tensor Tensor::detach() const { return alias(*this, layout()); }

namespace {
/// The only element of a tensor: `whole` for integers and bool, else `real`.
struct Number {
  bool is_whole;
  int64_t whole = 0;
  double real = 0;
};
Number number_of(const Tensor& x) {
  if (x.numel() != 1) fail("item: needs exactly one element — got shape ", x);
  const Tensor here = detail::on_cpu("item", x);
  return dispatch_all(x.dtype(), [&]<class T>() -> Number {
    const auto v = static_cast<detail::Computed<T>>(*reinterpret_cast<const T*>(here.raw()));
    if constexpr (std::is_integral_v<T>) return {.is_whole = true, .whole = v};
    else return {.is_whole = false, .real = v};
  });
}
}  // namespace

template <class To> To Tensor::number_item() const {
  const Number v = number_of(*this);
  if constexpr (std::is_integral_v<To>) {
    if (v.is_whole) return v.whole;
    if (!(v.real >= -0x1p63 && v.real < 0x1p63 && v.real == std::floor(v.real)))
      fail<ValueError>("item: ", v.real, " is no int64 — read it with item()");
    return static_cast<To>(v.real);
  } else {
    if (!v.is_whole) return static_cast<To>(v.real);
    const auto y = static_cast<To>(v.whole);
    if (y >= 0x1p63 || static_cast<int64_t>(y) != v.whole)
      fail<ValueError>("item: ", v.whole, " is no ", sizeof(To) == 4 ? "float" : "double",
                       " — read it with item<int64_t>()");
    return y;
  }
}
template double Tensor::number_item() const;
template float Tensor::number_item() const;

int64_t Tensor::whole_item(int64_t least, int64_t greatest) const {
  const auto v = number_item<int64_t>();
  if (v < least || v > greatest) fail<ValueError>("item: ", v, " is outside [", least, ", ", greatest, "]");
  return v;
}

// -- history -------------------------------------------------------------------------------------

bool Tensor::is_leaf() const { return !impl().history || impl().history->is_leaf(); }

Tensor& Tensor::requires_grad_(bool on) & {
  if (!is_leaf())
    fail<AutogradError>("requires_grad_: this tensor is the result of ", impl().history->name(),
                        "; only leaves can be switched, detach() it first");
  if (on && !is_float(dtype()))
    fail<DTypeError>("requires_grad_: only f32, f64 and bf16 tensors have gradients — got ", dtype());
  TensorImpl& t = *impl_;
  if (on && !t.history) {
    t.history = t.frozen ? t.frozen : Ref<Node>(new Leaf(*this));
    static_cast<Leaf&>(*t.history).frozen = false, t.frozen = nullptr;
    t.output_index = 0;  // an op that recorded nothing may have left its mark, see unit()
  } else if (!on && t.history) {
    Leaf& leaf = static_cast<Leaf&>(*t.history);
    leaf.grad = Tensor(), leaf.sum = Tensor(), leaf.frozen = true;
    t.frozen = t.history, t.history = nullptr;
  }
  return *this;
}

const Tensor& Tensor::grad() const {
  static const Tensor none;
  if (!requires_grad() || !impl_->history->is_leaf()) return none;
  return static_cast<Leaf&>(*impl_->history).grad;
}

void Tensor::set_grad(Tensor g) {
  if (!requires_grad()) {
    if (g.defined()) fail<AutogradError>("set_grad: this tensor does not require a gradient");
    return;
  }
  if (!is_leaf())
    fail<AutogradError>("set_grad: only leaves hold gradients; this is the result of ", impl_->history->name());
  if (g.defined()) detail::check_gradient("set_grad", g, "a tensor", *this);
  auto& leaf = static_cast<Leaf&>(*impl_->history);
  leaf.grad = std::move(g), leaf.sum = Tensor();
}

HookHandle Tensor::register_hook(std::function<Tensor(const Tensor&)> hook) {
  if (!requires_grad()) fail<AutogradError>("register_hook: this tensor does not require a gradient");
  if (!hook) fail<ValueError>("register_hook: the hook is empty");
  return HookHandle(impl_->history->add_hook(impl_->output_index, std::move(hook)));
}

void HookHandle::remove() {
  if (const auto hook = hook_.lock()) *hook = nullptr;
  hook_.reset();
}

void append_text(std::string& s, const Tensor& x) {
  if (x.defined()) append_text(s, x.shape());
  else s += "undefined";
}

namespace detail {

void fail_undefined(const char* op, std::string_view operand) {
  fail<ValueError>(op, ": ", operand,
                   " is undefined (default-constructed, moved from, or a grad() that backward() has not filled)");
}
void check_defined(const char* op, const std::vector<Tensor>& operands) {
  for (std::size_t i = 0; i < operands.size(); ++i)
    if (!operands[i].defined()) fail_undefined(op, str("operand ", i));
}

void check_devices(const char* op, std::initializer_list<std::reference_wrapper<const Tensor>> operands) {
  CommonDevice where{op};
  for (const Tensor& x : operands)
    if (x.defined()) where(x);
}

void check_floats(const char* op, std::initializer_list<NamedOperand> operands) {
  bool fit = true;
  CommonDevice where{op};
  for (const auto& [name, x] : operands) {
    if (!x.defined()) fail_undefined(op, name);
    where(x);
    fit = fit && is_float(x.dtype()) && x.dtype() == operands.begin()->second.dtype();
  }
  if (fit) return;
  std::string got;
  for (const auto& [name, x] : operands) got += str(got.empty() ? "" : ", ", name, "=", x.dtype(), x);
  fail<DTypeError>(op, ": needs f32, f64 or bf16 operands of one dtype — got ", got, "; convert with to(x, dtype)");
}

void check_gradient(const char* op, const Tensor& g, const char* what, const Tensor& x) {
  if (g.shape() != x.shape()) fail(op, ": gradient of shape ", g, " for ", what, " of shape ", x);
  if (g.dtype() != x.dtype())
    fail<DTypeError>(op, ": gradient of dtype ", g.dtype(), " for ", what, " of dtype ", x.dtype());
  if (g.device() != x.device()) fail<DeviceError>(op, ": gradient on ", g.device(), " for ", what, " on ", x.device());
}

Tensor borrowed(std::byte* data, std::size_t alignment, const Shape& shape, DType dtype,
                std::function<void()> release) {
  const int64_t n = checked_numel("from_blob", shape);
  if (!data && n > 0) fail<ValueError>("from_blob: the address is null — got shape ", shape);
  if (reinterpret_cast<std::uintptr_t>(data) % alignment != 0)
    fail<ValueError>("from_blob: the address is no multiple of ", alignment, ", as ", dtype, " needs");
  auto storage = Storage::borrow(data, static_cast<std::size_t>(n * size_of(dtype)), std::move(release));
  return Tensor(Ref<TensorImpl>(new TensorImpl(std::move(storage), shape, dtype)));
}

void copy_elements(const Tensor& from, Tensor& to) {
  if (from.shape() != to.shape()) fail("copy: shapes differ — got ", from, " and ", to);
  if (from.device() == to.device()) return kernel::copy(from, to);
  if (to.device() == meta) return;  // the values are dropped
  if (from.device() == meta) fail<DeviceError>("copy: a tensor on meta has no values to copy to ", to.device());
  if (to.device() != cpu && from.device() != cpu) return copy_elements(on_cpu("copy", from), to);
  // The source's device converts to row-major order and to the dtype; the target's device converts to its layout.
  Tensor packed = from, landed = to;
  if (!from.is_contiguous() || from.dtype() != to.dtype()) {
    packed = empty(from.shape(), {to.dtype(), from.device()});
    kernel::copy(from, packed);
  }
  if (!to.is_contiguous()) landed = empty(to.shape(), to.options());
  kernel::transfer(to.device() == cpu ? from.device() : to.device(), packed, landed);
  if (!landed.shares_storage(to)) kernel::copy(landed, to);
}

Tensor on_cpu(const char* op, const Tensor& x) {
  if (x.device() == cpu) return x;
  if (x.device() == meta) fail<DeviceError>(op, ": a tensor on meta has no values");
  Tensor here = empty(x.shape(), {x.dtype(), cpu});
  copy_elements(x, here);
  return here;
}

static void copy_cpu(const Tensor& from, Tensor& to) {
  const bool same = from.shape() == to.shape();
  copy_strided(from.raw(), same ? from.layout() : from.layout().expanded(to.shape()), from.dtype(), to.raw(),
               to.layout(), to.dtype());
}

}  // namespace detail

constinit decltype(kernel::copy) kernel::copy{"copy", &detail::copy_cpu, Bf16::native};
constinit decltype(kernel::transfer) kernel::transfer{"copy", nullptr, Bf16::native};

}  // namespace sluice
