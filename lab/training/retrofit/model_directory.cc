#include "training/retrofit/model_directory.h"

#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include "io/files.h"
#include "io/safetensors/safetensors.h"
#include "model/families/gguf/gguf_config.h"
#include "model/stored/weight_names.h"
#include "model/stored/weight_reader.h"

namespace kvlathe {
namespace {

// Shortest digits that give the same float.
double ShortestDouble(float x) { return std::stod(fmt::format("{}", x)); }

nlohmann::ordered_json LlamaJson(const ModelConfig& c) {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_size", c.hidden_dim},
          {"num_hidden_layers", c.n_layers},
          {"num_attention_heads", c.n_heads},
          {"num_key_value_heads", c.n_kv_heads},
          {"head_dim", c.head_dim},
          {"intermediate_size", c.ffn_dim},
          {"vocab_size", c.vocab_size},
          {"max_position_embeddings", c.max_seq_len},
          {"rms_norm_eps", ShortestDouble(c.norms.eps)},
          {"rope_theta", c.attention.of(0).rope.theta},
          {"hidden_act", "silu"},
          {"tie_word_embeddings", c.tie_word_embeddings},
          {"attention_bias", false},
          {"mlp_bias", false}};
}

nlohmann::ordered_json Gpt2Json(const ModelConfig& c) {
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"n_embd", c.hidden_dim},
          {"n_layer", c.n_layers},
          {"n_head", c.n_heads},
          {"n_inner", c.ffn_dim},
          {"vocab_size", c.vocab_size},
          {"n_positions", c.max_seq_len},
          {"layer_norm_epsilon", ShortestDouble(c.norms.eps)},
          {"activation_function", c.mlp == MlpKind::kGeluTanh ? "gelu_new" : "gelu"},
          {"tie_word_embeddings", c.tie_word_embeddings}};
}

nlohmann::ordered_json ConfigJson(const ModelConfig& c, DType dtype) {
  nlohmann::ordered_json json = c.layout == WeightLayout::kGpt2 ? Gpt2Json(c) : LlamaJson(c);
  json["bos_token_id"] = c.bos_id;
  json["eos_token_id"] = c.eos_ids.empty() ? -1 : c.eos_ids.front();
  if (c.dmc.has_value()) {
    json["dmc"] = {{"channel", c.dmc->is_last ? "last" : "first"},
                   {"offset", ShortestDouble(c.dmc->offset)},
                   {"weight_offset", ShortestDouble(c.dmc->weight_offset)},
                   {"epsilon", ShortestDouble(c.dmc->epsilon)},
                   {"zero_after_rope", c.dmc->zeroes_after_rope}};
  }
  json["torch_dtype"] = dtype == DType::kBf16 ? "bfloat16" : "float32";
  return json;
}

// Whether the product with this matrix is added to the residual stream.
bool WritesToStream(std::string_view name) {
  for (const char* suffix : {"o_proj.weight", "down_proj.weight", "c_proj.weight"}) {
    if (name.ends_with(suffix)) return true;
  }
  return false;
}

// Where a GGUF file has what a Hugging Face directory calls by these names. Of a Llama.
std::map<std::string, Projection> MatricesByName(const WeightNames& names,
                                                 const WeightNames& stored, int n_layers) {
  std::map<std::string, Projection> matrices;
  const auto add = [&](const Projection& name, const Projection& place) {
    matrices.emplace(name.tensor + ".weight", place);
  };
  const auto add_all = [&](const std::vector<Projection>& of_name,
                           const std::vector<Projection>& places) {
    for (size_t i = 0; i < of_name.size() && i < places.size(); ++i) add(of_name[i], places[i]);
  };
  Projection embedding = stored.output_head();
  embedding.tensor = stored.embedding().substr(0, stored.embedding().rfind('.'));
  matrices.emplace(names.embedding(), embedding);
  add(names.output_head(), stored.output_head());
  for (int l = 0; l < n_layers; ++l) {
    add_all(names.qk(l), stored.qk(l));
    add(names.v(l), stored.v(l));
    add(names.o(l), stored.o(l));
    add_all(names.mlp_in(l), stored.mlp_in(l));
    add(names.mlp_out(l), stored.mlp_out(l));
  }
  return matrices;
}

std::map<std::string, std::string> VectorsByName(const WeightNames& names,
                                                 const WeightNames& stored, int n_layers) {
  std::map<std::string, std::string> vectors;
  vectors.emplace(names.final_norm() + ".weight", stored.final_norm() + ".weight");
  for (int l = 0; l < n_layers; ++l) {
    vectors.emplace(names.attn_norm(l) + ".weight", stored.attn_norm(l) + ".weight");
    vectors.emplace(names.ffn_norm(l) + ".weight", stored.ffn_norm(l) + ".weight");
  }
  return vectors;
}

Status LoadGgufWeights(const std::string& path, Decoder* decoder) {
  KVL_ASSIGN_OR_RETURN(GgufFile opened, GgufFile::Open(path));
  const auto file = std::make_shared<const GgufFile>(std::move(opened));
  KVL_ASSIGN_OR_RETURN(const ModelConfig from, ReadGgufConfig(*file));
  if (from.model_type != "llama") {
    return Error(StatusCode::kUnimplemented,
                 "{}: of GGUF files the trainer reads those of architecture llama; give the "
                 "Hugging Face directory of the model",
                 path);
  }
  WeightReader reader(MakeGgufSource(file));
  ModelConfig plain = from;
  plain.layout = WeightLayout::kLlama;
  plain.has_neighbour_pairs = false;
  const WeightNames names(plain, reader.source()), stored(from, reader.source());
  const auto matrices = MatricesByName(names, stored, from.n_layers);
  const auto vectors = VectorsByName(names, stored, from.n_layers);
  const torch::NoGradGuard no_grad;
  for (const auto& [name, parameter] : decoder->parameters()) {
    if (IsOfDmsHead(name)) continue;  // in a file of their own
    std::vector<float> values;
    if (const auto vector = vectors.find(name); vector != vectors.end()) {
      KVL_ASSIGN_OR_RETURN(values, reader.Vector(vector->second, from.hidden_dim));
    } else if (const auto matrix = matrices.find(name); matrix != matrices.end()) {
      KVL_ASSIGN_OR_RETURN(values, reader.Matrix(matrix->second));
    }
    torch::Tensor target = parameter;
    if (std::ssize(values) != target.numel()) {
      return Error(StatusCode::kDataLoss, "{}: it has no tensor of the shape of '{}'", path, name);
    }
    target.copy_(torch::from_blob(values.data(), target.sizes(), torch::kFloat));
  }
  return OkStatus();
}

}  // namespace

Status CheckTrainable(const ModelConfig& config) {
  if (config.model_type == "gpt2") return OkStatus();
  const char* feature = nullptr;
  if (config.model_type != "llama") feature = "a family other than llama and gpt2";
  if (config.biases.qkv || config.biases.o || config.biases.mlp) feature = "biases";
  if (config.attention.of(0).rope.scaling != RopeConfig::Scaling::kNone) feature = "rope scaling";
  if (config.decides_in_queries()) feature = "a channel of queries that decides what leaves (DMS)";
  if (feature == nullptr) return OkStatus();
  return Error(StatusCode::kUnimplemented,
               "the trainer does not handle {}; it trains Llama models without biases and GPT-2",
               feature);
}

Status SaveDecoder(const Decoder& decoder, DType dtype, const std::string& directory) {
  std::error_code failed;
  std::filesystem::create_directories(directory, failed);
  if (failed) {
    return Error(StatusCode::kNotFound, "{}: cannot make the directory: {}", directory,
                 failed.message());
  }
  if (dtype == DType::kF16) {
    return Error(StatusCode::kInvalidArgument, "weights are saved as BF16 or F32");
  }
  std::vector<torch::Tensor> kept;
  std::vector<TensorToWrite> tensors;
  for (const auto& [name, parameter] : decoder.parameters()) {
    const auto type = dtype == DType::kBf16 ? torch::kBFloat16 : torch::kFloat;
    kept.push_back(parameter.detach().to(torch::kCPU, type).contiguous());
    TensorToWrite tensor;
    tensor.name = name;
    tensor.dtype = dtype;
    tensor.shape = kept.back().sizes().vec();
    tensor.data = kept.back().data_ptr();
    tensors.push_back(std::move(tensor));
  }
  KVL_RETURN_IF_ERROR(
      WriteSafetensors(directory + "/model.safetensors", tensors, {{"format", "pt"}}));
  const ModelConfig& c = decoder.config();
  nlohmann::ordered_json generation = {{"bos_token_id", c.bos_id}};
  if (!c.eos_ids.empty()) generation["eos_token_id"] = c.eos_ids.front();
  KVL_RETURN_IF_ERROR(
      WriteFileAtomically(directory + "/generation_config.json", generation.dump(2) + "\n"));
  return WriteFileAtomically(directory + "/config.json", ConfigJson(c, dtype).dump(2) + "\n");
}

Status LoadWeights(const std::string& model, Decoder* decoder) {
  if (FileExists(model)) return LoadGgufWeights(model, decoder);
  KVL_ASSIGN_OR_RETURN(const ModelConfig from, LoadModelConfig(model));
  KVL_ASSIGN_OR_RETURN(const SafetensorsReader reader, SafetensorsReader::OpenModel(model));
  const torch::NoGradGuard no_grad;
  for (const auto& [name, parameter] : decoder->parameters()) {
    if (IsOfDmsHead(name)) continue;
    if (LayerOf(name) >= from.n_layers) {
      if (WritesToStream(name)) torch::Tensor(parameter).zero_();
      continue;
    }
    KVL_ASSIGN_OR_RETURN(const TensorView* view, reader.Get(name, parameter.sizes().vec()));
    torch::Tensor values = torch::empty(parameter.sizes(), torch::kFloat);
    ConvertToFloat(view->dtype, view->data, view->n_elements(), values.data_ptr<float>());
    torch::Tensor target = parameter;
    target.copy_(values);
  }
  return OkStatus();
}

}  // namespace kvlathe
