// What a client saw of one request.
#pragma once

#include <string>
#include <vector>

namespace kvlathe {

// Times in seconds; start_s and arrival_s since the start of the run.
struct RequestRecord {
  double arrival_s = 0;       // when it was due
  double start_s = 0;         // when it was sent
  double ttft_s = 0;          // from start_s to the first text; 0: none came
  std::vector<double> itl_s;  // between one piece of text and the next
  double latency_s = 0;       // from start_s to the last piece
  int n_input = 0;            // tokens of the prompt, by the server's count where it gives one
  int n_output = 0;           // generated tokens, by the server's count where it gives one
  int n_asked = 0;            // tokens that were asked for
  bool is_counted_by_server = false;
  std::string text;
  std::string error_kind;  // empty: it succeeded; "connect", "timeout", "http 429", ...
  std::string error;       // the whole message

  bool succeeded() const { return error_kind.empty(); }
  // How long the client held it back, because as many requests as may be were under way.
  double client_queue_s() const { return start_s - arrival_s; }
  // The papers' measure, from arrival to the end for each generated token.
  double normalized_latency_s() const {
    return (client_queue_s() + latency_s) / (n_output > 0 ? n_output : 1);
  }
  double tpot_s() const { return n_output > 1 ? (latency_s - ttft_s) / (n_output - 1) : 0; }
};

}  // namespace kvlathe
