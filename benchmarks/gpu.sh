#!/usr/bin/env bash
# What waits for a GPU, in three rounds of some eight minutes each, the most wanted part first:
#
#   bash benchmarks/gpu.sh right [FOLDER]   # are the kernels right, and what misread attention's output?
#   bash benchmarks/gpu.sh fast [FOLDER]    # ratios to the plain host: inference, training steps, LIT-S beside Swin-T
#   bash benchmarks/gpu.sh train [FOLDER]   # several hundred steps both ways, and the loop beside a bare step
#
# Every part has a limit, and its own log in FOLDER (benchmarks/results), written as it goes; a part that fails or takes
# too long keeps no other from running. Where packages lie in a folder: PYTHONPATH=that_folder:src.
set -u
cd "$(dirname "$0")/.." || exit 1
round=${1:-}
out=${2:-benchmarks/results}
mkdir -p "$out"
export PYTHONUNBUFFERED=1 PYTHONPATH="${PYTHONPATH:-src}"
python=${PYTHON:-python3}

part() { # name, seconds, command
    local name=$1 limit=$2 began=$SECONDS code
    shift 2
    timeout --kill-after=5 "$limit" "$@" >"$out/gpu-$name.log" 2>&1
    code=$?
    printf '%-16s %4d s  exit %d   %s\n' "$name" $((SECONDS - began)) "$code" "$*"
    [ "$code" = 0 ] || tail -n 5 "$out/gpu-$name.log" | sed 's/^/    /'
}

tests() { # name, seconds, what
    local name=$1 limit=$2
    shift 2
    part "$name" "$limit" "$python" -m pytest -o addopts= -p no:cacheprovider -m gpu -q --durations=5 "$@"
}

diverge() { # name, arguments of divergence.py
    local name=$1
    shift
    part "$name" 90 "$python" benchmarks/divergence.py "$@" --steps 220
}

case $round in
right)
    part machine 30 "$python" -c 'import torch, triton, timm; print(torch.__version__, triton.__version__, timm.__version__, torch.backends.cudnn.version(), torch.cuda.get_device_name())'
    part layout 60 "$python" benchmarks/attention_layout.py
    part check 90 "$python" benchmarks/probe.py check
    part properties 90 "$python" -m pytest -o addopts= -p no:cacheprovider -q tests/properties/test_kernels.py
    tests kernels 120 tests/unit/kernels
    diverge ffn-eager-first local-ffn --plain --every 20
    diverge ffn-alone local-ffn --plain --every 0
    diverge life-no-cudnn life --plain --mode no_cudnn_attention --every 0
    ;;
fast)
    part infer 210 "$python" benchmarks/turns.py host life local-ffn cb --job graph:256 --job graph:1 --job infer:256 \
        --wait 150 -o "$out/gpu-infer.json"
    part step 220 "$python" benchmarks/turns.py host life local-ffn cb --job train:256 --job train-graph:256 \
        --job train:512:32 --wait 170 -o "$out/gpu-step.json"
    part lit 90 "$python" benchmarks/turns.py swin_tiny_patch4_window7_224/host lit_small/host --job graph:128 \
        --wait 70 -o "$out/gpu-lit.json"
    part time 60 "$python" benchmarks/probe.py time
    ;;
train)
    diverge life-shipped life --mode shipped --every 0
    tests compiled 270 tests/unit/train/test_compiled.py
    part loop 140 "$python" benchmarks/train_step.py
    tests processes 90 tests/contract/test_processes_and_devices.py tests/end_to_end/test_processes.py
    ;;
*)
    sed -n '2,9s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
