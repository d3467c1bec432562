#include "kvlathe/manual/manual_text.h"

namespace kvlathe {

const std::string_view kManualDescription = R"man(.SH DESCRIPTION
kvlathe runs decoder language models whose key/value cache is stored compressed; attention computes
on the compressed form. It generates text, holds conversations, serves the OpenAI API, and compares
caches on a model and a text.
.PP
A model is a directory as Hugging Face has it, a
.I .gguf
file, the name of a model that was fetched, or
.IR hf: OWNER / NAME .
A cache is a text, such as
.BR none ,
.B lathe(ratio=4)
or
.BR snapkv(keep=0.5)+kivi(bits=4) .
)man";

const std::string_view kManualEnding = R"man(.SH EXIT STATUS
.TP
.B 0
all went well
.TP
.B 1
a failure while running
.TP
.B 2
a request that cannot be right
.PP
An error is one line on standard error.
.SH ENVIRONMENT
.TP
.B KVLATHE_ISA
instruction set of processors: scalar, avx2, avx512 or amx, in place of the best that there is
.TP
.B KVLATHE_API_KEY
key that requests to
.B kvlathe serve
must carry
.TP
.B KVLATHE_PREFILL_KEY
key that the replicas of both roles share
.TP
.B OPENAI_API_KEY
key that
.B kvlathe bench serve
sends
.TP
.BR HF_ENDPOINT ", " HF_TOKEN ", " HF_TOKEN_PATH ", " HF_HUB_CACHE ", " HF_HOME ", " HF_HUB_OFFLINE
where models that are named by
.IR hf: OWNER / NAME
come from and are kept, as in Hugging Face's own programs
.TP
.B XDG_CACHE_HOME
where
.I kvlathe/
lies, in place of
.I ~/.cache
.TP
.BR NO_COLOR ", " COLORTERM ", " TERM
whether pictures in a terminal have colors
.SH FILES
.TP
.I ~/.cache/kvlathe
calibrations that were made of themselves, measured losses, and fetched models
.TP
.I basis.safetensors
beside a model (of
.I NAME.gguf
.IR NAME.basis.safetensors ):
what
.B kvlathe calibrate
measured
.TP
.I /etc/kvlathe/kvlathe.env
what the service kvlathe@PORT serves
.TP
.I /usr/share/kvlathe
texts for calibration, and the scripts and configurations that start replicas
.TP
.I /usr/share/doc/kvlathe
the documentation
.SH EXAMPLES
Text from a model, with a cache of a quarter of the bytes:
.PP
.RS
.nf
kvlathe run \-m model.gguf \-\-kv 'lathe(ratio=4)' \-p 'It was a dark' \-n 64
.fi
.RE
.PP
What caches lose, and how large they are:
.PP
.RS
.nf
kvlathe compare \-m model.gguf \-\-kv none \-\-kv 'lathe(ratio=4)' \-\-kv 'kivi(bits=4)'
.fi
.RE
.PP
A server whose clients choose between two caches:
.PP
.RS
.nf
kvlathe serve \-m model.gguf \-\-kv none \-\-kv 'lathe(ratio=6)' \-\-port 8080
.fi
.RE
.PP
Completions in the shell that runs now:
.PP
.RS
.nf
source <(kvlathe completions bash)
.fi
.RE
)man";

}  // namespace kvlathe
