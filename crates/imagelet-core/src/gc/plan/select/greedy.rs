//! The greedy search for any number of images: the best moves first, then pruning, then exchanges.

use std::{
    cmp::Ordering,
    collections::{BTreeSet, BinaryHeap},
};

use super::set_cover::{CoverState, Problem, Weight, number, place};

/// Bound of improvement work; a few milliseconds.
const WORK_MAX: usize = 400_000;
/// Above this many groups a single greedy walk is enough: it takes milliseconds, and a single move hardly matters.
const GROUPS_FEW: usize = 4_000;
/// Bound of the work to find overlapping groups; beyond it moves look smaller than they are.
const RELATIONS_MAX: usize = 8_000_000;

/// A set that frees enough; all candidates together must.
pub(super) fn choose(moves: &Moves<'_>, target: Weight) -> Vec<u32> {
    let problem = moves.problem;
    let mut work = WORK_MAX;
    let mut best: Option<CoverState<'_>> = None;
    let rules: &[bool] = if problem.groups.len() > GROUPS_FEW { &[true] } else { &[true, false] };
    for is_capped in rules.iter().copied() {
        let rule = Rule { target, is_capped };
        let start = CoverState::new(problem);
        let mut state = fill(moves, &start, &[], rule, &mut work).expect("all candidates together give enough");
        leave_out(&mut state, target);
        if best.as_ref().is_none_or(|best| state.cost() < best.cost()) {
            best = Some(state);
        }
    }
    let mut best = best.expect("a rule was tried");
    while work > 0 && (exchange(moves, &mut best, target, &mut work) || rebuild(moves, &mut best, target, &mut work)) {}
    best.set()
}

pub(super) fn order(moves: &Moves<'_>, set: &[u32]) -> Vec<u32> {
    let problem = moves.problem;
    let chosen: BTreeSet<u32> = set.iter().copied().collect();
    let others: Vec<u32> = (0..number(problem.costs.len())).filter(|user| !chosen.contains(user)).collect();
    let target = CoverState::of(problem, set).gone();
    let mut walk = Walk::new(moves, &CoverState::new(problem), &others, Rule { target, is_capped: false });
    let mut order = Vec::with_capacity(set.len());
    while let Some(group) = walk.next() {
        // Narrow images first: an image with few shared layers frees bytes before all users are removed.
        let narrowest = |user: &u32| {
            let groups = problem.groups_of[place(*user)].iter().map(|group| &problem.groups[place(*group)]);
            groups.filter(|group| group.weight != Weight::default()).map(|group| group.users.len()).min()
        };
        let mut users = problem.groups[place(group)].users.clone();
        users.sort_by_cached_key(|user| (narrowest(user), *user));
        let taken: BTreeSet<u32> = walk.take(group).into_iter().collect();
        order.extend(users.into_iter().filter(|user| taken.contains(user)));
    }
    // Images that free nothing are last.
    let placed: BTreeSet<u32> = order.iter().copied().collect();
    order.extend(chosen.difference(&placed));
    order
}

#[derive(Clone, Copy, Debug)]
struct Rule {
    target: Weight,
    /// Caps a gain at the missing amount.
    is_capped: bool,
}

impl Rule {
    fn ratio(self, gain: Weight, cost: u128, gone: Weight) -> f64 {
        let need = self.target.less(gone);
        let share = |gain: u128, need: u128, target: u128| {
            if need == 0 {
                return 0.0;
            }
            let counted = if self.is_capped { gain.min(need) } else { gain };
            counted as f64 / target as f64
        };
        let gain =
            share(gain.bytes, need.bytes, self.target.bytes) + share(gain.inodes, need.inodes, self.target.inodes);
        match cost {
            _ if gain == 0.0 => 0.0,
            0 => f64::INFINITY,
            cost => gain / cost as f64,
        }
    }
}

/// Moves of a problem before any removal, one per group.
pub(super) struct Moves<'a> {
    problem: &'a Problem,
    /// For each group, the groups whose users include all its users, itself included: their moves free it.
    wider: Vec<Vec<u32>>,
    gains: Vec<Weight>,
    costs: Vec<u128>,
}

impl<'a> Moves<'a> {
    pub(super) fn new(problem: &'a Problem) -> Self {
        let groups = problem.groups.len();
        let mut wider: Vec<Vec<u32>> = vec![Vec::new(); groups];
        let mut gains = vec![Weight::default(); groups];
        let mut work = RELATIONS_MAX;
        let mut shared = vec![0_u32; groups];
        for (this, group) in problem.groups.iter().enumerate() {
            let touched = group.users.iter().map(|user| problem.groups_of[place(*user)].len()).sum();
            if work < touched {
                wider[this].push(number(this));
            } else {
                work -= touched;
                let all = || group.users.iter().flat_map(|user| &problem.groups_of[place(*user)]);
                all().for_each(|other| shared[place(*other)] += 1);
                let first = &problem.groups_of[place(group.users[0])];
                wider[this].extend(first.iter().filter(|other| shared[place(**other)] == number(group.users.len())));
                all().for_each(|other| shared[place(*other)] = 0);
            }
            for other in &wider[this] {
                gains[place(*other)] = gains[place(*other)].plus(group.weight);
            }
        }
        let cost = |users: &Vec<u32>| users.iter().map(|user| u128::from(problem.costs[place(*user)])).sum();
        let costs = problem.groups.iter().map(|group| cost(&group.users)).collect();
        Self { problem, wider, gains, costs }
    }
}

/// A greedy walk: the remaining moves, and the best of them.
struct Walk<'m, 'a> {
    moves: &'m Moves<'a>,
    rule: Rule,
    state: CoverState<'a>,
    gains: Vec<Weight>,
    costs: Vec<u128>,
    /// A user of the group must stay.
    barred: Vec<bool>,
    heap: BinaryHeap<HeapEntry>,
    /// Groups with one remaining user, counted in the moves of that user.
    alone: Vec<bool>,
}

/// A move with its ratio at insertion.
struct HeapEntry {
    ratio: f64,
    group: u32,
}

impl<'m, 'a> Walk<'m, 'a> {
    fn new(moves: &'m Moves<'a>, state: &CoverState<'a>, barred_users: &[u32], rule: Rule) -> Self {
        let problem = moves.problem;
        let mut walk = Self {
            gains: moves.gains.clone(),
            costs: moves.costs.clone(),
            barred: vec![false; problem.groups.len()],
            heap: BinaryHeap::new(),
            alone: vec![false; problem.groups.len()],
            moves,
            rule,
            state: CoverState::new(problem),
        };
        for user in barred_users {
            for group in &problem.groups_of[place(*user)] {
                walk.barred[place(*group)] = true;
            }
        }
        let mut touched = Vec::new();
        for user in state.set() {
            walk.take_user(user, &mut touched);
        }
        walk.heap = (0..number(problem.groups.len())).filter_map(|group| walk.entry(group)).collect();
        walk
    }

    /// The best move with a gain; the lowest number among equals.
    fn next(&mut self) -> Option<u32> {
        while let Some(top) = self.heap.pop() {
            match self.entry(top.group) {
                Some(now) if now.ratio.total_cmp(&top.ratio) == Ordering::Equal => return Some(top.group),
                // The ratio has changed since insertion.
                Some(now) => self.heap.push(now),
                None => {}
            }
        }
        None
    }

    fn entry(&self, group: u32) -> Option<HeapEntry> {
        if self.barred[place(group)] || self.state.left(group) == 0 {
            return None;
        }
        let ratio = self.rule.ratio(self.gains[place(group)], self.costs[place(group)], self.state.gone());
        (ratio > 0.0).then_some(HeapEntry { ratio, group })
    }

    /// Removes the remaining users of a group and returns them.
    fn take(&mut self, group: u32) -> Vec<u32> {
        let problem = self.moves.problem;
        let users: Vec<u32> =
            problem.groups[place(group)].users.iter().copied().filter(|user| !self.state.is_taken(*user)).collect();
        let mut touched = Vec::new();
        for user in &users {
            self.take_user(*user, &mut touched);
        }
        touched.sort_unstable();
        touched.dedup();
        let entries: Vec<HeapEntry> = touched.into_iter().filter_map(|group| self.entry(group)).collect();
        self.heap.extend(entries);
        users
    }

    fn take_user(&mut self, user: u32, touched: &mut Vec<u32>) {
        let problem = self.moves.problem;
        self.state.take(user);
        for group in &problem.groups_of[place(user)] {
            self.costs[place(*group)] -= u128::from(problem.costs[place(user)]);
            touched.push(*group);
            match self.state.left(*group) {
                0 => self.count(*group, user, touched, Weight::less),
                1 => {
                    self.count(*group, user, touched, Weight::less);
                    // Every move with the last user frees it from here on.
                    let users = &problem.groups[place(*group)].users;
                    if let Some(last) = users.iter().find(|user| !self.state.is_taken(**user)) {
                        self.alone[place(*group)] = true;
                        self.count(*group, *last, touched, Weight::plus);
                    }
                }
                _ => {}
            }
        }
    }

    /// Changes the gains of all moves that free a group; `last` is its only remaining user, if any.
    fn count(&mut self, group: u32, last: u32, touched: &mut Vec<u32>, change: impl Fn(Weight, Weight) -> Weight) {
        let moves = self.moves;
        let is_alone = self.alone[place(group)];
        let wider = if is_alone { &moves.problem.groups_of[place(last)] } else { &moves.wider[place(group)] };
        let weight = moves.problem.groups[place(group)].weight;
        for other in wider {
            self.gains[place(*other)] = change(self.gains[place(*other)], weight);
            touched.push(*other);
        }
    }
}

/// Extends a set with the best moves until it frees enough, and at each step checks the cheapest single final move.
/// `None`: the set without the barred users does not free enough.
fn fill<'a>(
    moves: &Moves<'a>,
    start: &CoverState<'a>,
    barred: &[u32],
    rule: Rule,
    work: &mut usize,
) -> Option<CoverState<'a>> {
    let groups = moves.problem.groups.len();
    let mut walk = Walk::new(moves, start, barred, rule);
    let mut steps = Vec::new();
    while !walk.state.gone().meets(rule.target) {
        let group = walk.next()?;
        steps.push(group);
        walk.take(group);
    }
    let mut best = walk.state.clone();
    // Better endings are near the last steps; checking all steps is affordable for few moves only.
    if groups > GROUPS_FEW {
        return Some(best);
    }
    let looks = (*work / 4 / groups.max(1)).clamp(1, steps.len().max(1));
    let skipped = steps.len().saturating_sub(looks);
    let mut walk = Walk::new(moves, start, barred, rule);
    for (place_of, group) in steps.iter().enumerate() {
        if place_of >= skipped {
            *work = work.saturating_sub(groups);
            if let Some(end) = walk.cheapest_end(best.cost()) {
                let mut state = walk.state.clone();
                for user in &moves.problem.groups[place(end)].users {
                    state.take(*user);
                }
                best = state;
            }
        }
        walk.take(*group);
    }
    Some(best)
}

impl Walk<'_, '_> {
    /// The cheapest move that reaches the target at once and keeps the total below this cost.
    fn cheapest_end(&self, cost_max: u128) -> Option<u32> {
        let need = self.rule.target.less(self.state.gone());
        let mut best = None;
        let mut cost_max = cost_max.saturating_sub(self.state.cost());
        for group in 0..number(self.gains.len()) {
            if self.gains[place(group)].meets(need)
                && self.costs[place(group)] < cost_max
                && !self.barred[place(group)]
                && self.state.left(group) > 0
            {
                (best, cost_max) = (Some(group), self.costs[place(group)]);
            }
        }
        best
    }
}

/// Drops unneeded images from the set, most expensive first. Returns the dropped images, which stay.
fn leave_out(state: &mut CoverState<'_>, target: Weight) -> Vec<u32> {
    let mut slack = state.gone().less(target);
    let mut set = state.set();
    let costs = state.costs();
    set.sort_by_key(|user| (std::cmp::Reverse(costs[place(*user)]), *user));
    let mut left_out = Vec::new();
    for user in set {
        let loss = state.loss(user);
        if slack.meets(loss) {
            state.put_back(user);
            slack = slack.less(loss);
            left_out.push(user);
        }
    }
    left_out
}

/// Adds each move in turn, prunes the set, and keeps the first cheaper result.
fn exchange(moves: &Moves<'_>, best: &mut CoverState<'_>, target: Weight, work: &mut usize) -> bool {
    let mut improved = false;
    let size: usize = best.set().iter().map(|user| moves.problem.groups_of[place(*user)].len() + 1).sum();
    for group in 0..number(moves.problem.groups.len()) {
        *work = work.saturating_sub(1);
        if *work == 0 {
            break;
        }
        let users = &moves.problem.groups[place(group)].users;
        let added: Vec<u32> = users.iter().copied().filter(|user| !best.is_taken(*user)).collect();
        let cost: u128 = added.iter().map(|user| u128::from(moves.problem.costs[place(*user)])).sum();
        if added.is_empty() || cost >= best.cost() {
            continue;
        }
        *work = work.saturating_sub(size + added.len());
        let before = best.cost();
        for user in &added {
            best.take(*user);
        }
        let left_out = leave_out(best, target);
        if best.cost() < before {
            improved = true;
        } else {
            for user in left_out {
                best.take(user);
            }
            for user in added {
                best.put_back(user);
            }
        }
    }
    improved
}

/// Removes each image from the set in turn, bars it, and searches for another solution.
fn rebuild<'a>(moves: &Moves<'a>, best: &mut CoverState<'a>, target: Weight, work: &mut usize) -> bool {
    let problem = moves.problem;
    let size: usize = problem.groups_of.iter().map(Vec::len).sum::<usize>() + problem.groups.len();
    for user in best.set() {
        *work = work.saturating_sub(3 * size);
        if *work == 0 {
            return false;
        }
        let mut start = best.clone();
        start.put_back(user);
        let rule = Rule { target, is_capped: true };
        // A separate budget: `size` pays for one check of the endings.
        let Some(mut found) = fill(moves, &start, &[user], rule, &mut size.clone()) else { continue };
        leave_out(&mut found, target);
        if found.cost() < best.cost() {
            *best = found;
            return true;
        }
    }
    false
}

impl PartialEq for HeapEntry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for HeapEntry {}

impl PartialOrd for HeapEntry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The largest is the best; the lowest number among equals.
impl Ord for HeapEntry {
    fn cmp(&self, other: &Self) -> Ordering {
        self.ratio.total_cmp(&other.ratio).then(other.group.cmp(&self.group))
    }
}
