// Every layer that layer_check knows.
#pragma once

#include "layer.h"

namespace layer_check {

/// In the order in which --list prints them.
const std::vector<Layer>& layers();
/// ValueError listing the known names.
const Layer& find_layer(const std::string& name);

/// Adds the entries of a file, entries_*.cpp.
using Entries = void(std::vector<Layer>& all);
Entries add_attention, add_basic, add_conversions, add_flash, add_gates, add_gau, add_linear, add_linear_layers,
    add_metrics, add_mla, add_multi_head, add_positions, add_sinkhorn, add_sparse, add_sparse_layers;
/// An entry for each row of the library's table that `all` lacks: without formulas for shapes.
Entries add_rest_of_table;
/// Costs of the layers that are in the list.
Entries add_costs;
/// Fills in the draft, the required options and the samples of an entry that stands in the table.
void fill_from_table(Layer& layer);

}  // namespace layer_check
