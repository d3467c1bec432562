// What an audit may take of the time while requests run.
#pragma once

#include <algorithm>

namespace kvlathe::server {

// Time is earned by work, `share` of what the engine and the audit compute while requests are
// there, and spent by the audit; so that over any long time it has no more than its share. Little
// is saved up: an audit that comes after hours without one does not stand beside every step.
class AuditBudget {
 public:
  explicit AuditBudget(double share) : share_(share) {}

  void NoteStep(double seconds) { Earn(seconds); }
  // Of a piece of the audit while requests were there.
  void NoteBeside(double seconds) {
    Expect(seconds);
    credit_ -= seconds;
    Earn(seconds);
  }
  // Nobody waited: it costs nothing, and tells how long pieces take.
  void NoteIdle(double seconds) { Expect(seconds); }
  // Whether a piece as long as those before is paid for.
  bool AllowsPiece() const { return credit_ > 0 && credit_ >= (1 - share_) * piece_seconds_; }

 private:
  static constexpr double kMostPieces = 2;  // saved up
  static constexpr double kForgetting = 0.9;

  void Earn(double seconds) {
    const double most = piece_seconds_ > 0 ? kMostPieces * piece_seconds_ : 1;
    credit_ = std::min(credit_ + share_ * seconds, most);
  }
  void Expect(double seconds) { piece_seconds_ = std::max(seconds, kForgetting * piece_seconds_); }

  double share_;
  double credit_ = 0;         // seconds; below 0 where a piece took longer than it was to
  double piece_seconds_ = 0;  // the longest of the last ones
};

}  // namespace kvlathe::server
