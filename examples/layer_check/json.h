// JSON in and out. The parser's header is slow to compile, so it stays in one source file.
#pragma once

#include "layer.h"

namespace layer_check {

/// The options of a case: a JSON object of booleans, numbers, texts, null and lists of numbers. ValueError otherwise.
Values parse_config(const std::string& text);
std::string config_text(const Values& options);
/// What --list prints: all layers, or those given.
std::string listing(const std::vector<const Layer*>& layers);

}  // namespace layer_check
