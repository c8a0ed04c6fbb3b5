//! Tests of the selection against brute force, and against a proven bound for large inputs.

use super::*;
use crate::ports::{Certainty, LayerFacts};

const MIB: u64 = 1 << 20;

#[derive(Clone)]
struct Item {
    image: ImageId,
    cost: u64,
}

fn costs(items: &[Item]) -> Vec<(&ImageId, u64)> {
    items.iter().map(|item| (&item.image, item.cost)).collect()
}

fn choose(graph: &LayerGraph, items: &[Item], wanted: Freed) -> Option<Vec<(ImageId, Freed)>> {
    super::choose(graph, costs(items), wanted)
}

fn most(graph: &LayerGraph, items: &[Item]) -> Freed {
    Problem::new(graph, costs(items)).all().narrowed()
}

/// A deterministic generator (xorshift64*).
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 16) % end
    }

    fn heavy(&mut self) -> u64 {
        let exponent = self.below(12);
        MIB / 16 + self.below(MIB << exponent)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Chains,
    SharedBases,
    Diamonds,
    HeavyTails,
    EqualSizes,
    Ties,
    Random,
}

const SHAPES: [Shape; 7] = [
    Shape::Chains,
    Shape::SharedBases,
    Shape::Diamonds,
    Shape::HeavyTails,
    Shape::EqualSizes,
    Shape::Ties,
    Shape::Random,
];

struct Case {
    graph: LayerGraph,
    candidates: Vec<Item>,
}

fn id(number: usize) -> ImageId {
    ImageId::new(format!("sha256:{number:08}"))
}

fn facts(number: usize, bytes: u64, inodes: u64) -> LayerFacts {
    LayerFacts {
        id: format!("layer-{number}").into(),
        bytes: ByteSize(bytes),
        inodes: Some(inodes),
        held: false,
        folder: None,
    }
}

/// Images of one shape; most may go, some are held.
fn case(shape: Shape, images: usize, dice: &mut Dice) -> Case {
    let mut parts: Vec<Vec<u32>> = Vec::new();
    let mut layers = 0_u32;
    let mut fresh = |count: u64| {
        let from = layers;
        layers += u32::try_from(count).unwrap();
        (from..layers).collect::<Vec<u32>>()
    };
    match shape {
        // Each image is built on a whole earlier one.
        Shape::Chains => {
            for image in 0..images {
                let mut stack = if image == 0 || dice.below(4) == 0 {
                    Vec::new()
                } else {
                    parts[usize::try_from(dice.below(image as u64)).unwrap()].clone()
                };
                stack.extend(fresh(1 + dice.below(3)));
                parts.push(stack);
            }
        }
        Shape::SharedBases | Shape::HeavyTails | Shape::EqualSizes | Shape::Ties => {
            let bases: Vec<Vec<u32>> = (0..=images / 4).map(|_| fresh(1 + dice.below(2))).collect();
            let runtimes: Vec<(usize, Vec<u32>)> = (0..=images / 3)
                .map(|_| (usize::try_from(dice.below(bases.len() as u64)).unwrap(), fresh(1)))
                .collect();
            for _ in 0..images {
                let (base, runtime) = &runtimes[usize::try_from(dice.below(runtimes.len() as u64)).unwrap()];
                let mut stack = bases[*base].clone();
                if dice.below(3) > 0 {
                    stack.extend(runtime);
                }
                stack.extend(fresh(1 + dice.below(3)));
                parts.push(stack);
            }
        }
        // Layers independent of their parents: any two images may share any layer.
        Shape::Diamonds => {
            let shared = fresh(images as u64);
            for image in 0..images {
                let mut stack: Vec<u32> = [image, image + 1, image + 1 + usize::try_from(dice.below(3)).unwrap()]
                    .into_iter()
                    .map(|at| shared[at % images])
                    .collect();
                stack.sort_unstable();
                stack.dedup();
                if dice.below(2) == 0 {
                    stack.extend(fresh(1));
                }
                parts.push(stack);
            }
        }
        Shape::Random => {
            let shared = fresh(1 + images as u64 * 3 / 2);
            for _ in 0..images {
                let share = 1 + dice.below(4);
                let mut stack: Vec<u32> =
                    shared.iter().copied().filter(|_| dice.below(shared.len() as u64) < share * 2).collect();
                if stack.is_empty() || dice.below(3) == 0 {
                    stack.extend(fresh(1));
                }
                parts.push(stack);
            }
        }
    }
    let size = |dice: &mut Dice| match shape {
        Shape::EqualSizes => 64 * MIB,
        Shape::Ties => (1 + dice.below(3)) * 32 * MIB,
        Shape::HeavyTails => dice.heavy(),
        _ => MIB + dice.below(200 * MIB),
    };
    let layers = (0..layers as usize).map(|layer| facts(layer, size(dice), 1 + dice.below(5_000))).collect();
    let held = |dice: &mut Dice| images > 3 && dice.below(8) == 0;
    let cost = |dice: &mut Dice| match shape {
        Shape::Ties => 1 + dice.below(3),
        Shape::EqualSizes => 10,
        Shape::HeavyTails => {
            let exponent = 1 + dice.below(20);
            1 + dice.below(1 << exponent)
        }
        _ => 1 + dice.below(100_000),
    };
    let candidates = (0..images)
        .filter_map(|image| if held(dice) { None } else { Some(Item { image: id(image), cost: cost(dice) }) })
        .collect();
    let images = parts.into_iter().enumerate().map(|(image, parts)| (id(image), parts)).collect();
    Case { graph: LayerGraph { layers, images, certainty: Certainty::Exact }, candidates }
}

/// The least cost of all sufficient sets, computed independently of the tested code.
fn brute_force(case: &Case, wanted: Freed) -> Option<u128> {
    let position: std::collections::HashMap<&ImageId, usize> =
        case.candidates.iter().enumerate().map(|(place, candidate)| (&candidate.image, place)).collect();
    let mut masks = vec![Some(0_u32); case.graph.layers.len()];
    for (image, parts) in &case.graph.images {
        for part in parts {
            let mask = &mut masks[*part as usize];
            *mask = mask.and_then(|mask| position.get(image).map(|place| mask | 1 << place));
        }
    }
    let layers: Vec<(u32, u128, u128)> = masks
        .iter()
        .zip(&case.graph.layers)
        .filter_map(|(mask, layer)| Some(((*mask)?, layer.bytes.0.into(), layer.inodes?.into())))
        .filter(|(mask, _, _)| *mask != 0)
        .collect();
    let mut best = None;
    for set in 0..1_u32 << case.candidates.len() {
        let costs = case.candidates.iter().enumerate().filter(|(place, _)| set & 1 << place != 0);
        let cost: u128 = costs.map(|(_, candidate)| u128::from(candidate.cost)).sum();
        if best.is_some_and(|best| best <= cost) {
            continue;
        }
        let freed = layers.iter().filter(|(mask, _, _)| mask & !set == 0);
        let (bytes, inodes) = freed.fold((0, 0), |sum, layer| (sum.0 + layer.1, sum.1 + layer.2));
        if bytes >= u128::from(wanted.bytes.0) && inodes >= u128::from(wanted.inodes) {
            best = Some(cost);
        }
    }
    best
}

/// The selection frees its reported bytes, by the graph's own arithmetic, and enough. Returns its cost.
fn check(case: &Case, wanted: Freed, choice: &[(ImageId, Freed)]) -> u128 {
    let images: Vec<&ImageId> = choice.iter().map(|(image, _)| image).collect();
    let freed = case.graph.freed_by(images.iter().copied());
    assert!(freed.bytes >= wanted.bytes && freed.inodes >= wanted.inodes, "{freed:?} is less than {wanted:?}");
    let steps = choice.iter().fold((0, 0), |sum, it| (sum.0 + it.1.bytes.0, sum.1 + it.1.inodes));
    assert_eq!(steps, (freed.bytes.0, freed.inodes));
    let costs: BTreeMap<&ImageId, u64> = case.candidates.iter().map(|it| (&it.image, it.cost)).collect();
    images.into_iter().map(|image| u128::from(costs[image])).sum()
}

/// Worst and mean ratio of cost to least cost.
#[derive(Default)]
struct Ratios {
    worst: f64,
    sum: f64,
    count: f64,
    over: usize,
}

impl Ratios {
    fn add(&mut self, cost: u128, least: u128) {
        let ratio = if least == 0 && cost == 0 { 1.0 } else { cost as f64 / least as f64 };
        self.worst = self.worst.max(ratio);
        self.sum += ratio;
        self.count += 1.0;
        self.over += usize::from(ratio > 1.05);
    }
}

impl std::fmt::Display for Ratios {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mean = self.sum / self.count;
        write!(f, "worst {:.4}, mean {mean:.5}, {} of {} over 1.05", self.worst, self.over, self.count)
    }
}

#[test]
fn the_choice_costs_little_more_than_the_best_of_all_sets() {
    let mut dice = Dice(0x0005_eed0_f5e7);
    let (mut answers, mut impossible) = (Ratios::default(), 0);
    for round in 0..1_400_usize {
        let shape = SHAPES[round % SHAPES.len()];
        let images = 2 + usize::try_from(dice.below(13)).unwrap();
        let case = case(shape, images, &mut dice);
        let most = most(&case.graph, &case.candidates);
        // Bytes, inodes or both, and sometimes more than there is.
        let part = |all: u64, dice: &mut Dice| all / 100 * (1 + dice.below(103));
        let wanted = Freed {
            bytes: ByteSize(if round % 5 == 4 { 0 } else { part(most.bytes.0, &mut dice).max(1) }),
            inodes: if round % 5 >= 3 { part(most.inodes, &mut dice).max(1) } else { 0 },
        };
        let least = brute_force(&case, wanted);
        match (choose(&case.graph, &case.candidates, wanted), least) {
            (None, None) => {
                impossible += 1;
            }
            (Some(choice), Some(least)) => {
                answers.add(check(&case, wanted, &choice), least);
            }
            (answer, least) => panic!("{shape:?}: {answer:?}, the best of all sets costs {least:?}"),
        }
    }
    println!("choice against brute force: {answers}; {impossible} impossible");
    assert!(answers.count >= 1_000.0 && impossible >= 20);
    assert!(answers.sum / answers.count <= 1.01 && answers.worst <= 2.0, "{answers}");
}

fn state_of<'a>(problem: &'a Problem, set: &[usize]) -> CoverState<'a> {
    let mut state = CoverState::new(problem);
    for user in set {
        state.take(*user);
    }
    state
}

#[test]
fn putting_back_undoes_taking() {
    let mut dice = Dice(4);
    for shape in SHAPES {
        let case = case(shape, 12, &mut dice);
        let problem = Problem::new(&case.graph, costs(&case.candidates));
        let all: Vec<usize> = (0..problem.costs.len()).collect();
        let (back, stay): (Vec<usize>, Vec<usize>) = all.iter().partition(|_| dice.below(2) == 0);
        let mut state = state_of(&problem, &all);
        // A second time changes nothing.
        back.iter().chain(&back).for_each(|user| state.put_back(*user));
        let expected = state_of(&problem, &stay);
        assert_eq!((state.set(), state.cost, state.freed), (stay, expected.cost, expected.freed), "{shape:?}");
        let left = |state: &CoverState<'_>| state.left.clone();
        assert_eq!(left(&state), left(&expected), "{shape:?}");
    }
}

/// A node of many images: apps on runtimes on bases, and layers of one image.
fn crowd(images: usize, layers: usize, dice: &mut Dice) -> Case {
    let (bases, runtimes) = (1 + images / 200, 1 + images / 20);
    let runtime_base: Vec<u32> = (0..runtimes).map(|_| number_of(dice.below(bases as u64))).collect();
    let first_own = bases + runtimes;
    let mut parts = Vec::new();
    let mut next = first_own;
    for image in 0..images {
        let runtime = usize::try_from(dice.below(runtimes as u64)).unwrap();
        let mut stack = vec![runtime_base[runtime], number_of((bases + runtime) as u64)];
        let own = (layers - next) / (images - image);
        stack.extend((next..next + own).map(|layer| number_of(layer as u64)));
        next += own;
        parts.push(stack);
    }
    let layers = (0..next)
        .map(|layer| {
            let bytes = if layer < bases { 80 * MIB + dice.below(200 * MIB) } else { dice.heavy() };
            facts(layer, bytes, 1 + bytes / MIB * 40)
        })
        .collect();
    let candidates = (0..images)
        .filter(|image| image % 40 != 7)
        .map(|image| Item { image: id(image), cost: 1 + dice.heavy() / 1_000 })
        .collect();
    let images = parts.into_iter().enumerate().map(|(image, parts)| (id(image), parts)).collect();
    Case { graph: LayerGraph { layers, images, certainty: Certainty::Exact }, candidates }
}

fn number_of(number: u64) -> u32 {
    u32::try_from(number).unwrap()
}

/// A lower bound of the cost: each group's bytes are split among its users, which may be selected in part.
fn bound(case: &Case, wanted: u64) -> f64 {
    let problem = Problem::new(&case.graph, costs(&case.candidates));
    let mut gains = vec![0.0; problem.costs.len()];
    for group in &problem.groups {
        let costs: f64 = group.users.iter().map(|user| problem.costs[*user] as f64).sum();
        for user in &group.users {
            gains[*user] += group.weight.bytes as f64 * problem.costs[*user] as f64 / costs;
        }
    }
    let mut order: Vec<usize> = (0..gains.len()).filter(|user| gains[*user] > 0.0).collect();
    order.sort_by(|a, b| (problem.costs[*a] as f64 / gains[*a]).total_cmp(&(problem.costs[*b] as f64 / gains[*b])));
    let (mut missing, mut cost) = (wanted as f64, 0.0);
    for user in order {
        cost += problem.costs[user] as f64 * (missing / gains[user]).clamp(0.0, 1.0);
        missing -= gains[user];
    }
    cost
}

#[test]
fn ten_thousand_images_of_a_hundred_thousand_layers_are_chosen_from_near_a_proven_bound() {
    let mut dice = Dice(0x00c0_ffee);
    let case = crowd(10_000, 100_000, &mut dice);
    let most = most(&case.graph, &case.candidates).bytes.0;
    for percent in [1, 10, 40, 90] {
        let wanted = Freed { bytes: ByteSize(most / 100 * percent), inodes: 0 };
        let began = tokio::time::Instant::now();
        let choice = choose(&case.graph, &case.candidates, wanted).unwrap();
        let took = began.elapsed();
        let ratio = check(&case, wanted, &choice) as f64 / bound(&case, wanted.bytes.0);
        println!("{percent} % of all: {} images in {took:?}, cost by bound {ratio:.4}", choice.len());
        assert!(ratio <= 1.05, "{percent} %: {ratio}");
    }
}

#[test]
fn the_same_question_has_the_same_answer_in_any_order() {
    let mut dice = Dice(77);
    for shape in SHAPES {
        let mut case = case(shape, 40, &mut dice);
        let wanted = Freed { bytes: ByteSize(most(&case.graph, &case.candidates).bytes.0 / 3), inodes: 0 };
        let first = choose(&case.graph, &case.candidates, wanted);
        case.candidates.reverse();
        let again = case.candidates[0].clone();
        case.candidates.push(again);
        assert_eq!(choose(&case.graph, &case.candidates, wanted), first, "{shape:?}");
    }
}

fn stack(sizes: &[u64], images: &[&[u32]], costs: &[u64]) -> Case {
    let layers = sizes.iter().enumerate().map(|(layer, size)| facts(layer, *size, 1)).collect();
    let candidates = costs.iter().enumerate().map(|(image, cost)| Item { image: id(image), cost: *cost }).collect();
    let images = images.iter().enumerate().map(|(image, parts)| (id(image), parts.to_vec())).collect();
    Case { graph: LayerGraph { layers, images, certainty: Certainty::Exact }, candidates }
}

fn chosen(case: &Case, bytes: u64) -> Vec<usize> {
    let wanted = Freed { bytes: ByteSize(bytes), inodes: 0 };
    let choice = choose(&case.graph, &case.candidates, wanted).unwrap();
    let place = |(image, _): &(ImageId, Freed)| image.as_str()["sha256:".len()..].parse().unwrap();
    choice.iter().map(place).collect()
}

#[test]
fn of_images_on_top_of_one_another_the_top_goes_before_the_base_is_believed_to_be_free() {
    // Listed sizes 1000, 1010 and 1011: the kubelet removes the oldest, assumes 1000 bytes, and frees none.
    let case = stack(&[1_000, 10, 1], &[&[0], &[0, 1], &[0, 1, 2]], &[1, 1, 1]);
    assert_eq!(chosen(&case, 1), [2]);
    assert_eq!(chosen(&case, 11), [2, 1]);
    assert_eq!(chosen(&case, 12), [2, 1, 0]);
    assert_eq!(choose(&case.graph, &case.candidates, Freed { bytes: ByteSize(1_012), inodes: 0 }), None);
    assert_eq!(most(&case.graph, &case.candidates), Freed { bytes: ByteSize(1_011), inodes: 3 });
}

#[test]
fn what_an_image_in_use_or_a_running_pull_needs_is_not_counted_on() {
    let mut case = stack(&[1_000, 10, 30], &[&[0, 1], &[0, 2], &[0]], &[1, 1]);
    assert_eq!(most(&case.graph, &case.candidates).bytes, ByteSize(40));
    case.graph.layers[2].held = true;
    assert_eq!(most(&case.graph, &case.candidates).bytes, ByteSize(10));
    assert_eq!(chosen(&case, 5), [0]);
}

#[test]
fn of_many_images_without_shared_layers_those_go_that_free_most_for_their_cost() {
    // The large ones free twice as much, and cost ten times as much.
    let images: Vec<(u64, ByteSize)> =
        (0..100_u64).map(|image| if image % 2 == 0 { (10, ByteSize(2)) } else { (1, ByteSize(1)) }).collect();
    let chosen = choose_independent(&images, Freed { bytes: ByteSize(50), inodes: 0 });
    assert_eq!(chosen.iter().map(|image| images[*image].0).sum::<u64>(), 50);
}

#[test]
fn an_image_that_names_a_layer_twice_uses_it_once() {
    let twice = stack(&[100, 10, 7], &[&[0, 0, 1], &[1, 1, 2]], &[1, 1]);
    let once = stack(&[100, 10, 7], &[&[0, 1], &[1, 2]], &[1, 1]);
    for bytes in [1, 7, 100, 107, 117] {
        assert_eq!(chosen(&twice, bytes), chosen(&once, bytes), "{bytes}");
    }
    assert_eq!(most(&twice.graph, &twice.candidates), most(&once.graph, &once.candidates));
}

#[test]
fn who_wants_nothing_gets_nothing() {
    let case = stack(&[1_000], &[&[0]], &[0]);
    assert!(choose(&case.graph, &case.candidates, Freed::default()).unwrap().is_empty());
    let none = LayerGraph::default();
    let wanted = Freed { bytes: ByteSize(1), inodes: 0 };
    assert_eq!(choose(&none, &case.candidates, wanted), None);
}

#[test]
fn sums_beyond_64_bits_and_images_that_cost_nothing_are_reckoned_with() {
    let huge = u64::MAX / 2 + 1;
    let case = stack(&[huge, huge, huge, 8], &[&[0], &[1], &[2], &[3]], &[u64::MAX, u64::MAX, u64::MAX, 0]);
    assert_eq!(chosen(&case, 8), [3]);
    assert_eq!(chosen(&case, u64::MAX).len(), 2);
    let all = choose(&case.graph, &case.candidates, Freed { bytes: ByteSize(u64::MAX), inodes: 4 }).unwrap();
    assert_eq!(all.len(), 4);
}
