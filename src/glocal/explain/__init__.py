"""See what a model attends to: `watch` records it, pure functions sum it up, `draw` shows it."""

from glocal.explain import keep
from glocal.explain.dense_rollout import class_map, from_boxes, from_segmentation, global_map
from glocal.explain.distance import relative_distance
from glocal.explain.entropy import EntropyProfile, entropy, entropy_profile
from glocal.explain.look import Look
from glocal.explain.offsets import sampling_points, trace
from glocal.explain.rollout import RollOut, gradient_rollout, looked_at, rollout
from glocal.explain.scales import ScaleProfile, scale_profile
from glocal.explain.watch import Watch, watch
