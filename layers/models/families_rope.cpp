// RoPE as config.json describes it: one for all layers, one for each kind of layer, or that of latent attention.
#include <sluice/layers/models/families.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace sluice::detail {

/// Llama 3.1's frequencies. Those with at most `low` turns in the trained `length` are divided by `factor`, those with
/// at least `high` turns are kept. Between these bounds the division fades out.
static std::vector<double> llama3_frequencies(int64_t dim, double base, double factor, double low, double high,
                                              double length) {
  std::vector<double> out = rope_frequencies(dim, base);
  for (double& f : out) {
    const double turns = length * f / (2 * std::numbers::pi);  // in `length`
    const double kept = std::clamp((turns - low) / (high - low), 0.0, 1.0);
    f = (1 - kept) * f / factor + kept * f;
  }
  return out;
}

/// True if rope_parameters describe one RoPE for all layers. Otherwise rope_scaling may be given.
static bool one_rope(const ModelConfig& c) {
  return c.has("rope_parameters.rope_theta") || c.has("rope_parameters.rope_type") || c.has("rope_parameters.type");
}

RopeOptions FamilyReader::rope(int64_t head_dim, const std::string& under) const {
  const ModelConfig& c = config;
  const bool one = one_rope(c), new_names = one || c.has("rope_parameters.full_attention.rope_theta");
  for (const char* kind : {"rope_scaling.rope_type", "rope_scaling.type"})
    if (new_names && c.has(kind)) c.refuse(kind, "rope_parameters stand there, too");
  const std::string at = !under.empty() ? under + "." : one ? "rope_parameters." : "rope_scaling.";
  RopeOptions o{.base = under.empty() ? c.get("rope_parameters.rope_theta", c.get("rope_theta", 10000.0))
                                      : c.at<double>(at + "rope_theta")};
  const bool own_share = c.has(at + "partial_rotary_factor") || (type == "laguna" && !under.empty());
  const std::string partial = (own_share ? at : "") + "partial_rotary_factor";
  const auto trained_length = [&] {
    const std::string field = at + "original_max_position_embeddings";
    return c.at<int64_t>(c.has(field) || !c.has("max_position_embeddings") ? field : "max_position_embeddings");
  };
  std::string kind = c.get(at + "rope_type", c.get(at + "type", std::string("default")));
  if (kind == "su" && type == "phi3") kind = "longrope";  // its older name
  // The model takes no texts of more tokens, for which RoPE would be another.
  const auto limit_texts = [&](const std::string& field, int64_t length) {
    if (length < 1) c.refuse(field, "it must be positive");
    int64_t& longest = plan.options.longest;
    longest = longest > 0 ? std::min(longest, length) : length;
  };
  const bool proportional = kind == "proportional";  // all pairs turn, those beyond the share by the angle 0
  if (!rotary_share && !proportional) c.must_be(partial, 1.0);
  const double share = c.get(partial, rotary_share.value_or(1)), channels = static_cast<double>(head_dim) * share;
  if (!(channels >= 1 && share <= 1)) c.refuse(partial, str("it must turn from 1 to all of ", head_dim, " channels"));
  const int64_t turned = static_cast<int64_t>(channels), dim = proportional ? head_dim : turned;
  if (dim != head_dim) o.rot_dim = dim;
  if (kind == "default" || kind == "mrope") {
    c.ignore(at + "mrope_section " + at + "mrope_interleaved");  // positions on three axes, which are equal for text
  } else if (kind == "dynamic" && type.starts_with("hunyuan") && c.get(at + "alpha", 0.0) != 0) {
    const double alpha = c.at<double>(at + "alpha"), d = static_cast<double>(head_dim);
    o.base *= std::pow(alpha, d / (d - 2));
    for (const char* unused : {"factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"}) c.ignore(at + unused);
  } else if (kind == "dynamic") {  // as the default, where a text has no more than this number of tokens
    if (!(c.at<double>(at + "factor") >= 1)) c.refuse(at + "factor", "it must be at least 1");
    limit_texts("max_position_embeddings", c.at<int64_t>("max_position_embeddings"));
  } else if (kind == "linear" || proportional) {
    o.frequencies = rope_frequencies(dim, o.base);
    for (double& f : o.frequencies) f /= proportional ? c.get(at + "factor", 1.0) : c.at<double>(at + "factor");
    if (proportional)
      std::fill(o.frequencies.begin() + std::clamp<int64_t>(turned / 2, 0, dim / 2), o.frequencies.end(), 0.0);
  } else if (kind == "llama3") {
    const double low = c.at<double>(at + "low_freq_factor"), high = c.at<double>(at + "high_freq_factor");
    if (!(low > 0 && low < high)) c.refuse(at + "low_freq_factor", "it must lie in (0, high_freq_factor)");
    o.frequencies =
        llama3_frequencies(dim, o.base, c.at<double>(at + "factor"), low, high, static_cast<double>(trained_length()));
  } else if (kind == "yarn" || (kind == "deepseek_yarn" && type == "sarvam_mla")) {
    const double factor = c.at<double>(at + "factor"), mscale = c.get(at + "mscale", 0.0),
                 all = c.get(at + "mscale_all_dim", 0.0);
    if (!under.empty()) c.must_be(at + "truncate", true);  // transformers does not read it there
    o = yarn_rope(o, dim, factor, trained_length(), c.get(at + "beta_fast", 32.0), c.get(at + "beta_slow", 1.0),
                  c.get(at + "truncate", true));
    const double growth = o.factor - 1;
    if (mscale != 0 && all != 0) o.factor = (1 + mscale * growth) / (1 + all * growth);
    o.factor = c.get(at + "attention_factor", o.factor);
  } else if (kind == "longrope") {
    const auto factors_of = [&](const std::string& field) {
      const auto factors = c.at<std::vector<double>>(at + field);
      if (std::ssize(factors) != dim / 2 || std::ranges::any_of(factors, [](double f) { return !(f > 0); }))
        c.refuse(at + field, str("need ", dim / 2, " positive numbers"));
      return factors;
    };
    const std::vector<double> of_short = factors_of("short_factor"), of_long = factors_of("long_factor"),
                              &factors = plan.long_texts ? of_long : of_short;
    o.frequencies = rope_frequencies(dim, o.base);
    for (std::size_t i = 0; i < factors.size(); ++i) o.frequencies[i] /= factors[i];
    const char* const outside = "original_max_position_embeddings";
    const int64_t trained = c.has(outside) ? c.at<int64_t>(outside) : trained_length();
    c.must_be(at + outside, trained);
    if (of_long != factors) limit_texts(outside, trained);
    const double length = static_cast<double>(trained);
    const bool given = c.has(at + "attention_factor") || c.has(at + "factor");
    const double most = given ? length : c.at<double>("max_position_embeddings");  // families differ in its default
    const double longer = c.get(at + "factor", most / length);
    o.factor = c.get(at + "attention_factor", longer <= 1 ? 1 : std::sqrt(1 + std::log(longer) / std::log(length)));
  } else {
    c.refuse(at + (c.has(at + "rope_type") ? "rope_type" : "type"),
             known({"default", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional"}));
  }
  return o;
}

void FamilyReader::two_ropes(MultiHeadAttentionOptions o, const std::vector<int64_t>& sliding, double local) {
  const auto of = [&](const std::string& kind) { return rope(o.heads.head_dim, "rope_parameters." + kind); };
  const bool apart = local == 0 || config.has("rope_parameters.full_attention.rope_theta");
  if (one_rope(config))
    config.refuse("rope_parameters.rope_theta", "need one for each of full_attention and sliding_attention");
  // Transformers does not read the older name here.
  if (!apart && !config.has("rope_scaling.rope_type")) config.must_be("rope_scaling.type", std::string("default"));
  if (apart) o.heads.rope = of("full_attention");
  mixers(o);
  o.heads.rope = apart ? of("sliding_attention") : RopeOptions{.base = local, .rot_dim = o.heads.rope.rot_dim};
  mixers(sliding, o);
}

void FamilyReader::query_growth(QueryGrowth& o) const {
  const std::string at = "rope_parameters.";
  o = {config.at<double>(at + "llama_4_scaling_beta"), positive(at + "original_max_position_embeddings")};
  config.ignore(at + "max_position_embeddings");
}

void FamilyReader::latent_rope(MlaOptions& o) const {
  o.rope = rope(rotary_share ? o.nope_dim + o.rope_dim : o.rope_dim);
  if (rotary_share && o.rope.rot_dim != o.rope_dim)
    config.refuse("rope_parameters.partial_rotary_factor",
                  str("it must turn qk_rope_head_dim=", o.rope_dim, " channels"));
  o.rope.pairing = RopePairing::interleaved;
  const std::string at = one_rope(config) ? "rope_parameters." : "rope_scaling.";
  const bool scaled = config.get(at + "rope_type", config.get(at + "type", std::string("default"))) != "default";
  if (const double mscale = config.get(at + "mscale_all_dim", 0.0); mscale != 0 && scaled)
    o.scale = yarn_mla(o, config.at<double>(at + "factor"), 1, mscale).scale;
}

}  // namespace sluice::detail
