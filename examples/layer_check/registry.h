// Every layer that layer_check knows.
#pragma once

#include "layer.h"

namespace layer_check {

/// In the order in which --list prints them.
const std::vector<Layer>& layers();
/// ValueError listing the known names.
const Layer& find_layer(const std::string& name);

void add_basic(std::vector<Layer>& all);
void add_positions(std::vector<Layer>& all);
void add_gau(std::vector<Layer>& all);
void add_flash(std::vector<Layer>& all);
void add_attention(std::vector<Layer>& all);
void add_linear(std::vector<Layer>& all);
void add_linear_layers(std::vector<Layer>& all);
void add_gates(std::vector<Layer>& all);
void add_multi_head(std::vector<Layer>& all);
void add_conversions(std::vector<Layer>& all);
void add_sparse(std::vector<Layer>& all);
void add_sinkhorn(std::vector<Layer>& all);
void add_sparse_layers(std::vector<Layer>& all);
void add_metrics(std::vector<Layer>& all);
/// Of layers that are in the list.
void add_costs(std::vector<Layer>& all);

}  // namespace layer_check
