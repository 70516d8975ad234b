// Feature maps, linear attention and scans as functions of given queries, keys and values.
#include "linear_forms.h"
#include "registry.h"

#include <sluice/layers/linear_attention/linear_attention.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/scan/linear_scan.h>

#include <algorithm>

namespace layer_check {

using namespace sluice;

void feature_map_parameters(Layer& l, const std::string& path, const std::string& p, const std::string& d,
                            const std::string& when) {
  const std::string at = path.empty() ? "" : path + ".", k = p + "kind", f = "(" + p + "features or " + d + ")",
                    hidden = "(" + p + "hidden or 2*" + d + ")", bias = p + "bias", heads = p + "heads";
  const auto add = [&](const std::string& name, const std::string& in, const std::string& out,
                       const std::string& condition) {
    const std::string one = in.empty() ? "" : in + ", ", each = in.empty() ? "1, " : one;
    const std::string there = when + " and " + condition + " and " + heads;
    l.parameter(at + name + " [" + one + out + "]", "", there + " == 0");
    l.parameter(at + name + " [" + heads + ", " + each + out + "]", "", there + " > 0");
  };
  add("weight", d, f, "(" + k + " == 't2r' or " + k + " == 'relu' and " + p + "features > 0)");
  add("weight", d, hidden, k + " == 'mlp'");
  add("weight", d, d, k + " == 'hedgehog'");
  add("bias", "", f, k + " == 't2r' and " + bias);
  add("bias", "", hidden, k + " == 'mlp' and " + bias);
  add("bias", "", d, k + " == 'hedgehog' and " + bias);
  add("weight2", hidden, f, k + " == 'mlp'");
  add("bias2", "", f, k + " == 'mlp' and " + bias);
  l.parameter(at + "omega [" + d + ", " + f + "]", "random directions: favor N(0, 1), fourier N(0, 1/sigma^2)",
              when + " and " + k + " in ('favor', 'fourier')")
      .parameters.back()
      .buffer = true;
}

namespace {

enum class Form { chunked, quadratic, recurrent };
constexpr const char* choices(Form) { return "chunked quadratic recurrent"; }

struct LinearCall {
  Form form = Form::chunked;
  LinearAttentionForm options;
  bool use_rope = false;
  RopeOptions rope;
  bool state = false;

  static void describe(auto& o, auto& f) {
    f("form", o.form,
      "which of the equal forms: scan in chunks (or by associativity), the n x n matrix, or one token "
      "at a time (causal only)");
    f("direction", o.options.direction, kLinearDirectionMeaning);
    f("normalize", o.options.normalize, "sum: divide by phi(q) Z + eps");
    f("eps", o.options.eps, at_least(0), "of the denominator");
    f("scale", o.options.scale, any_number(), "of phi(q)");
    f("chunk", o.options.chunk, at_least(1), "steps at once; changes rounding only");
    f("use_rope", o.use_rope, "rotate phi(q) and phi(k) in the numerator");
    f.nested("rope_", o.rope);
    f("state", o.state, "recurrent: write the state after the last token");
  }
};

struct ScanCall {
  LinearScanOptions options;
  bool channels = false, chunks_only = false;
  static void describe(auto& o, auto& f) {
    f("channels", o.channels, "log_decay is [batch, heads, n, f] instead of [batch, heads, n]");
    f("chunk", o.options.chunk, at_least(1), "steps at once; changes rounding only, unless chunks_only");
    f("chunks_only", o.chunks_only, "o_t = q_t S at the start of the chunk of t");
    f("reverse", o.options.reverse, "from the last step to the first");
    f("decay_on_values", o.options.decay_on_values, "the channels of log_decay are those of v");
  }
};
struct GlaCase : LinearAttentionForm {
  static void describe(auto& o, auto& f) {
    f("scale", o.scale, any_number(), "of q");
    f("chunk", o.chunk, at_least(1), "steps at once; changes rounding only");
  }
};

Results run_linear(const LinearCall& call, const Inputs& in) {
  LinearAttentionForm form = call.options;
  form.log_decay = in["log_decay"], form.key_mask = in["key_mask"];
  if (call.use_rope) form.rope = call.rope;
  const Tensor q = in["phi_q"], k = in["phi_k"], v = in["v"];
  if (call.form == Form::chunked) return {{"", linear_attention(q, k, v, form)}};
  if (call.form == Form::quadratic) return {{"", quadratic_attention(q, k, v, form)}};
  const Recurrent r = recurrent_attention(q, k, v, form);
  Results results{{"", r.y}};
  if (call.state) results.push_back({"state", r.state});
  return results;
}

/// linear_scan(); with chunks_only less what a step's own chunk adds.
Tensor run_scan(const ScanCall& call, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_decay) {
  const Tensor y = linear_scan(q, k, v, log_decay, call.options);
  if (!call.chunks_only) return y;
  Shape shape{k.dim(0), k.dim(1), k.dim(2)};
  if (call.channels) shape.push_back(call.options.decay_on_values ? v.dim(3) : k.dim(3));
  const Tensor g = log_decay.defined() ? expand(log_decay, shape) : log_decay;
  std::vector<Tensor> own;
  for (int64_t first = 0; first < k.dim(2); first += call.options.chunk) {
    const auto chunk = [&](const Tensor& x) {
      return x.defined() ? narrow(x, 2, first, std::min(call.options.chunk, k.dim(2) - first)) : x;
    };
    own.push_back(linear_scan(chunk(q), chunk(k), chunk(v), chunk(g), call.options));
  }
  return own.empty() ? y : y - cat(own, 2);
}

void scan_inputs(Layer& l) {
  l.input("q [batch, heads, n, f]").input("k [batch, heads, n, f]").input("v [batch, heads, n, dv]");
}

void add_scans(std::vector<Layer>& all) {
  add(all, "linear_scan", "linear attention", "S_t = e^g_t S_{t-1} + k_t' v_t, o_t = q_t S_t",
      "Katharopoulos et al. 2020, Yang et al. 2024 (chunks)")
      .also(scan_inputs)
      .input("log_decay? broadcast [batch, heads, n]", "log of what the state keeps at each step, <= 0", "not channels")
      .only(Range::nonpositive)
      .input("log_decay broadcast [batch, heads, n, dv if decay_on_values else f]",
             "the same for each channel of k (of v with decay_on_values)", "channels")
      .only(Range::nonpositive)
      .output("[batch, heads, n, dv]")
      .output("state [batch, heads, f, dv]", "S after the last step",
              "not reverse and not chunks_only and not decay_on_values")
      .samples({{{"chunk", 4}, {"channels", true}},
                {{"chunk", 2}, {"chunks_only", true}},
                {{"reverse", true}},
                {{"channels", true}, {"decay_on_values", true}}})
      .runs<ScanCall>([](const ScanCall& o, const Inputs& in) -> Results {
        const Tensor g = in["log_decay"];
        Results results{{"", run_scan(o, in["q"], in["k"], in["v"], g)}};
        if (!o.options.reverse && !o.chunks_only && !o.options.decay_on_values)
          results.push_back({"state", linear_scan_state(in["k"], in["v"], g)});
        return results;
      });
  add(all, "gla_attention", "linear attention", "S_t = diag(alpha_t) S_{t-1} + k_t' v_t, o_t = scale q_t S_t",
      "Yang et al. 2024")
      .also(scan_inputs)
      .input("alpha [batch, heads, n, f]", "what each key channel keeps, in (0, 1]")
      .only(Range::unit)
      .output("[batch, heads, n, dv]")
      .runs<GlaCase>([](LinearAttentionForm o, const Inputs& in) {
        o.direction = LinearDirection::causal, o.normalize = LinearNormalize::none;
        o.log_decay = log(in["alpha"]);
        return linear_attention(in["q"], in["k"], in["v"], o);
      });
}

}  // namespace

void add_linear(std::vector<Layer>& all) {
  add(all, "feature_map", "linear attention",
      "identity x; exp e^x; elu1 elu(x) + 1; relu relu(x W) + offset; t2r relu(x W + b) + offset; poly_elem [x, x^2 … "
      "x^p]; poly_kernel [x, sqrt c] (x) … (x) [x, sqrt c]; favor e^(x omega - |x|^2/2)/sqrt m; fourier [cos x omega, "
      "sin x omega]/sqrt f; mlp softplus(relu(x W1 + b1) W2 + b2); hedgehog softmax[2y, -2y], y = x W + b",
      "Katharopoulos et al. 2020 (elu1), Kasai et al. 2021 (t2r), Choromanski et al. 2021 (favor), Rahimi & Recht "
      "2007 (fourier), Zhang et al. 2024 (hedgehog)")
      .derive({{"m",
                "(features or dim) if kind in ('relu', 't2r', 'mlp', 'favor') else degree*dim if kind == "
                "'poly_elem' else (dim + 1)**degree + int(smoothing > 0) if kind == 'poly_kernel' else "
                "2*(features or dim) + int(smoothing > 0) if kind == 'fourier' else 2*dim if kind == 'hedgehog' else "
                "dim"}})
      .input("x [..., dim]", "", "heads == 0")
      .input("x [batch, heads, n, dim]", "", "heads > 0")
      .also([](Layer& l) { feature_map_parameters(l, "", "", "dim", "True"); })
      .output("[..., m]");
  add(all, "linear_attention_form", "linear attention",
      "o_i = phi_q_i U / (phi_q_i Z + eps), U = sum_j phi_k_j' v_j, Z = sum_j phi_k_j", "Katharopoulos et al. 2020")
      .note("Takes phi(q) and phi(k): see feature_map. With state, output.state is U with Z as its last column.")
      .input("phi_q [batch, heads, m, f]", "", "direction == 'full'")
      .input("phi_q [batch, heads, n, f]", "", "direction != 'full'")
      .input("phi_k [batch, heads, n, f]")
      .input("v [batch, heads, n, dv]")
      .input("log_decay? broadcast [batch, heads, n]", "log of what is kept at each step, <= 0", "direction != 'full'")
      .only(Range::nonpositive)
      .input(Kind::boolean, "key_mask? [batch, n]")
      .output("[batch, heads, m if direction == 'full' else n, dv]")
      .output("state [batch, heads, f, dv + int(normalize == 'sum')]", "U and Z beside it",
              "state and form == 'recurrent'")
      .samples({{{"direction", "causal"}, {"chunk", 4}},
                {{"direction", "bidirectional"}, {"form", "quadratic"}},
                {{"direction", "two_direction_mean"}, {"chunk", 2}},
                {{"direction", "causal"}, {"form", "recurrent"}, {"state", true}, {"use_rope", true}},
                {{"direction", "causal"}, {"form", "recurrent"}, {"state", true}, {"normalize", "none"}}})
      .runs<LinearCall>(run_linear);
  add_scans(all);
}

}  // namespace layer_check
