//! What layers take, learned from what the disk lost and gained when they came and went.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::{
    image::{ByteSize, Digest, ImageId},
    runtime::{Certainty, LayerFacts, LayerGraph},
};

/// Most layers whose measured size is remembered; some megabytes.
const MEASURED_MAX: usize = 20_000;
/// How many of the last measurements say how much larger layers are on the disk than claimed.
const FACTORS_MAX: usize = 31;
/// Until there is any: what gzip makes of programs and text, as for pulls.
const FACTOR_ASSUMED: f64 = 3.0;
/// A change of the disk by less than a fifth of what is claimed, or more than twenty times as much, was somebody else's
/// doing or is not yet done.
const FACTORS_BELIEVED: std::ops::RangeInclusive<f64> = 0.2..=20.0;

/// An image with its stack of layers, lowest first, each named by all below it and itself.
#[derive(Clone, Debug)]
pub(super) struct Stack {
    pub(super) image: ImageId,
    /// As the runtime lists it.
    pub(super) claimed: ByteSize,
    pub(super) chain: Vec<Digest>,
}

/// What one layer takes, as far as it was seen.
#[derive(Clone, Copy, Debug)]
struct Measured {
    bytes: u64,
    /// How many layers came or went together of which this is a share; 1 is certain.
    among: usize,
}

/// What was learned so far.
#[derive(Debug, Default)]
pub(super) struct LayerSizes {
    measured: HashMap<Digest, Measured>,
    /// In the order of measuring, so that the oldest can be forgotten.
    order: VecDeque<Digest>,
    factors: VecDeque<f64>,
}

impl LayerSizes {
    /// Takes note of a change of the disk by these layers, claimed to be of these sizes. What is not believable is not.
    pub(super) fn learn(&mut self, layers: &[(Digest, u64)], change: u64) -> bool {
        let claimed: u64 =
            layers.iter().map(|(_, claimed)| claimed).fold(0, |sum, claimed| sum.saturating_add(*claimed));
        if claimed == 0 {
            return false;
        }
        let factor = change as f64 / claimed as f64;
        if !FACTORS_BELIEVED.contains(&factor) {
            return false;
        }
        self.factors.push_back(factor);
        if self.factors.len() > FACTORS_MAX {
            self.factors.pop_front();
        }
        // Who came or went among fewer before is known better than now, and the rest is of the others.
        let is_finer = |layer: &Digest| self.measured.get(layer).is_some_and(|measured| measured.among < layers.len());
        let finer = layers.iter().filter(|(layer, _)| is_finer(layer)).map(|(layer, _)| self.measured[layer].bytes);
        let finer = finer.fold(0, u64::saturating_add);
        let others: Vec<&(Digest, u64)> = layers.iter().filter(|(layer, _)| !is_finer(layer)).collect();
        let (others, change) = match change.checked_sub(finer) {
            Some(rest) => (others, rest),
            None => (layers.iter().collect(), change),
        };
        let among = others.len();
        let whole = others.iter().map(|(_, claimed)| *claimed).fold(0, u64::saturating_add).max(1);
        for (layer, claimed) in others {
            // Split as claimed: who comes or goes with others is known only as a part of them.
            let bytes = u128::from(change) * u128::from(*claimed) / u128::from(whole);
            let measured = Measured { bytes: u64::try_from(bytes).unwrap_or(u64::MAX), among };
            if self.measured.insert(layer.clone(), measured).is_none() {
                self.order.push_back(layer.clone());
            }
        }
        while self.order.len() > MEASURED_MAX {
            if let Some(oldest) = self.order.pop_front() {
                self.measured.remove(&oldest);
            }
        }
        true
    }

    /// How much larger layers are on the disk than claimed: the middle of the last measurements.
    fn factor(&self) -> f64 {
        let mut factors: Vec<f64> = self.factors.iter().copied().collect();
        factors.sort_by(f64::total_cmp);
        factors.get(factors.len() / 2).copied().unwrap_or(FACTOR_ASSUMED)
    }

    /// The graph of these images.
    pub(super) fn graph(&self, stacks: &[Stack]) -> LayerGraph {
        let claims = claims(stacks);
        let factor = self.factor();
        let (mut places, mut graph) = (HashMap::new(), LayerGraph::default());
        let mut measured = 0;
        for stack in stacks {
            let mut parts = Vec::with_capacity(stack.chain.len());
            for layer in &stack.chain {
                let place = *places.entry(layer).or_insert_with(|| {
                    let known = self.measured.get(layer).map(|measured| measured.bytes);
                    measured += u32::from(known.is_some());
                    let claimed = claims.get(layer).copied().unwrap_or_default();
                    #[expect(
                        clippy::cast_possible_truncation,
                        clippy::cast_sign_loss,
                        reason = "a guess, not negative"
                    )]
                    let bytes = known.unwrap_or((claimed as f64 * factor) as u64);
                    let facts =
                        LayerFacts { id: layer.as_str().into(), bytes: ByteSize(bytes), inodes: None, held: false };
                    graph.layers.push(facts);
                    graph.layers.len() - 1
                });
                parts.extend(u32::try_from(place));
            }
            parts.sort_unstable();
            parts.dedup();
            graph.images.insert(stack.image.clone(), parts);
        }
        let layers = u32::try_from(graph.layers.len()).unwrap_or(u32::MAX);
        graph.certainty = Certainty::Learned { measured, layers };
        graph
    }
}

/// Splits what images are listed with among their layers: what a shorter stack has is known when a taller one comes.
pub(super) fn claims(stacks: &[Stack]) -> BTreeMap<Digest, u64> {
    let mut order: Vec<&Stack> = stacks.iter().collect();
    order.sort_by_key(|stack| (stack.chain.len(), stack.claimed, stack.image.clone()));
    let mut claims = BTreeMap::new();
    for stack in order {
        let known: u64 = stack.chain.iter().filter_map(|layer| claims.get(layer)).sum();
        let new: Vec<&Digest> = stack.chain.iter().filter(|layer| !claims.contains_key(*layer)).collect();
        let share = stack.claimed.0.saturating_sub(known) / (new.len() as u64).max(1);
        for layer in new {
            claims.insert(layer.clone(), share);
        }
    }
    claims
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(name: &str) -> Digest {
        Digest::of(name.as_bytes())
    }

    fn stack(image: &str, claimed: u64, chain: &[&str]) -> Stack {
        Stack {
            image: ImageId::new(image),
            claimed: ByteSize(claimed),
            chain: chain.iter().map(|name| digest(name)).collect(),
        }
    }

    fn bytes(graph: &LayerGraph, name: &str) -> u64 {
        graph.layers.iter().find(|layer| &*layer.id == digest(name).as_str()).expect("it is there").bytes.0
    }

    #[test]
    fn what_a_taller_stack_adds_is_told_from_what_the_shorter_has() {
        let stacks = [stack("c", 1_110, &["a", "b", "c"]), stack("a", 1_000, &["a"]), stack("b", 1_100, &["a", "b"])];
        let claims = claims(&stacks);
        assert_eq!(["a", "b", "c"].map(|name| claims[&digest(name)]), [1_000, 100, 10]);
        let graph = LayerSizes::default().graph(&stacks);
        assert_eq!((bytes(&graph, "a"), bytes(&graph, "c")), (3_000, 30));
        assert_eq!(graph.certainty, Certainty::Learned { measured: 0, layers: 3 });
        assert_eq!(graph.freed_by([&ImageId::new("a")]).bytes, ByteSize::ZERO);
    }

    #[test]
    fn what_came_and_went_is_believed_and_teaches_about_the_rest() {
        let mut sizes = LayerSizes::default();
        assert!(sizes.learn(&[(digest("a"), 1_000), (digest("b"), 500)], 3_000));
        let graph = sizes.graph(&[stack("b", 1_500, &["a", "b"]), stack("c", 100, &["c"])]);
        assert_eq!((bytes(&graph, "a"), bytes(&graph, "b"), bytes(&graph, "c")), (2_000, 1_000, 200));
        assert_eq!(graph.certainty, Certainty::Learned { measured: 2, layers: 3 });
    }

    #[test]
    fn what_was_seen_alone_is_not_unlearned_with_others() {
        let mut sizes = LayerSizes::default();
        assert!(sizes.learn(&[(digest("own"), 500)], 600));
        assert!(sizes.learn(&[(digest("floor"), 500), (digest("own"), 500)], 3_000));
        let tower = [stack("tower", 1_000, &["floor", "own"])];
        let of = |sizes: &LayerSizes, name| bytes(&sizes.graph(&tower), name);
        assert_eq!((of(&sizes, "own"), of(&sizes, "floor")), (600, 2_400));
        // Less than the one alone: one of the two measurements was somebody else's doing.
        let mut sizes = LayerSizes::default();
        assert!(sizes.learn(&[(digest("own"), 500)], 600));
        assert!(sizes.learn(&[(digest("floor"), 500), (digest("own"), 500)], 500));
        assert_eq!((of(&sizes, "own"), of(&sizes, "floor")), (250, 250), "the latest is believed");
    }

    #[test]
    fn noise_is_not_learned_and_one_wild_measurement_moves_nothing() {
        let mut sizes = LayerSizes::default();
        for change in [0, 100, 30_000] {
            assert!(!sizes.learn(&[(digest("a"), 1_000)], change), "{change}");
        }
        assert!(!sizes.learn(&[], 1_000) && !sizes.learn(&[(digest("a"), 0)], 1_000));
        for name in ["a", "b", "c", "d"] {
            assert!(sizes.learn(&[(digest(name), 1_000)], 2_500));
        }
        assert!(sizes.learn(&[(digest("wild"), 1_000)], 19_000));
        assert!((sizes.factor() - 2.5).abs() < f64::EPSILON);
    }

    #[test]
    fn memory_is_bounded() {
        let mut sizes = LayerSizes::default();
        for number in 0..MEASURED_MAX + 10 {
            sizes.learn(&[(digest(&number.to_string()), 1_000)], 2_000);
        }
        assert_eq!(
            (sizes.measured.len(), sizes.order.len(), sizes.factors.len()),
            (MEASURED_MAX, MEASURED_MAX, FACTORS_MAX)
        );
        assert!(!sizes.measured.contains_key(&digest("0")));
    }
}
