// Every limit the server holds a request to. Over a limit: 400 naming the field, except where noted.
#pragma once

#include <cstddef>
#include <cstdint>

namespace vayu::server {

// HTTP. Body size and time-outs are settings (ServerConfig); these are not.
constexpr size_t kMaxHeaderBytes = 32 * 1024;      // request line and headers together; over it 431
constexpr size_t kMaxHeaders = 100;                // over it 431
constexpr size_t kMaxTargetBytes = 4096;           // over it 414
constexpr size_t kMaxPipelinedBytes = 64 * 1024;   // read ahead while an answer runs; past it a hang-up is seen late
constexpr size_t kMaxDiscardedBytes = 256 * 1024;  // of a refused body, read so that the client sees the answer
constexpr size_t kMaxRequestIdBytes = 128;

// JSON, checked before a document is built.
constexpr int kMaxJsonDepth = 64;  // also inside tool-call argument text
constexpr size_t kMaxJsonValues = 1u << 20;
constexpr size_t kMaxJsonObjectKeys = 2048;  // in one object
constexpr size_t kMaxJsonKeys = 1u << 16;    // in the whole document

// Fields.
constexpr int kMaxN = 64;
constexpr size_t kMaxPrompts = 128;  // prompts in one completions call
constexpr size_t kMaxAnswers = 256;  // prompts times n
constexpr size_t kMaxStopStrings = 16;
constexpr size_t kMaxStopBytes = 256;  // of one stop string
constexpr size_t kMaxStopTokenIds = 256;
constexpr size_t kMaxLogitBias = 1024;
constexpr double kMaxLogitBiasValue = 100;
constexpr int kMaxTopLogprobs = 20;
constexpr int64_t kMaxLogprobEntries = 1 << 19;  // answers times (tokens) times (top_logprobs + 1)
constexpr double kMaxTemperature = 100;
constexpr double kMinTemperature = 1e-4;  // below it a temperature counts as 0 (argmax)
constexpr double kMaxPenalty = 2;         // presence and frequency, either sign
constexpr double kMinRepetitionPenalty = 0.01;
constexpr double kMaxRepetitionPenalty = 100;
constexpr int64_t kMaxProfileSteps = 200;  // in one window: a record a kernel is kept, and a line of the timeline
constexpr double kMaxProfileSeconds = 120;
constexpr size_t kMaxMessages = 4096;
constexpr size_t kMaxTools = 256;
constexpr size_t kMaxDescriptionBytes = 1 << 20;  // of one tool
constexpr size_t kMaxNameBytes = 512;             // model, role, name, user, cache_salt
// A prompt of more bytes than the context could hold (context x bytes of the longest token x this) is refused without
// being tokenised; the factor leaves room for normalisers that shorten text.
constexpr size_t kNormaliserSlack = 3;

}  // namespace vayu::server
