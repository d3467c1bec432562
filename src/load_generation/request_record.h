// Holds what a client saw of one request.
#pragma once

#include <string>
#include <vector>

namespace kvlathe {

// All times are in seconds. arrival_s and start_s count from the start of the run, the others from
// start_s.
struct RequestRecord {
  double arrival_s = 0;       // when the request was due
  double start_s = 0;         // when it was sent
  double ttft_s = 0;          // until the first text
  std::vector<double> itl_s;  // between one piece of text and the next
  double latency_s = 0;       // until the last piece
  int n_input = 0;            // tokens of the prompt, by the server's count where it gives one
  int n_output = 0;           // tokens of the answer, by the server's count where it gives one
  int n_asked = 0;            // tokens that were asked for
  bool is_counted_by_server = false;
  std::string text;
  std::string error_kind;  // empty where it succeeded; else "connect", "timeout", "http 429", ...
  std::string error;       // the whole message

  bool succeeded() const { return error_kind.empty(); }
  // How long the client held the request back, because as many as may be were under way.
  double client_queue_s() const { return start_s - arrival_s; }
  // The papers' measure: the time from arrival to the end, divided by the generated tokens.
  double normalized_latency_s() const {
    return (client_queue_s() + latency_s) / (n_output > 0 ? n_output : 1);
  }
  double tpot_s() const { return n_output > 1 ? (latency_s - ttft_s) / (n_output - 1) : 0; }
};

}  // namespace kvlathe
