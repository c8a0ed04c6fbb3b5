//! Good sets for any number of images: the best move first, then what turned out needless is left out, then exchanges.

use std::{
    cmp::Ordering,
    collections::{BTreeSet, BinaryHeap},
};

use super::set_cover::{CoverState, Problem, Weight, number, place};

/// Steps of work after which no further improvement is looked for: some milliseconds.
const WORK_MAX: usize = 400_000;
/// With more groups than these one greedy walk is all: a single move more or less is nothing in the whole, and a walk
/// takes milliseconds itself.
const GROUPS_FEW: usize = 4_000;
/// Steps of work to find out which groups' users have which other groups as well; beyond, moves look smaller than they
/// are.
const RELATIONS_MAX: usize = 8_000_000;

/// A set that frees enough; all candidates together do.
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

/// The members of a set in the order in which they should go.
pub(super) fn order(moves: &Moves<'_>, set: &[u32]) -> Vec<u32> {
    let problem = moves.problem;
    let chosen: BTreeSet<u32> = set.iter().copied().collect();
    let others: Vec<u32> = (0..number(problem.costs.len())).filter(|user| !chosen.contains(user)).collect();
    let target = CoverState::of(problem, set).gone();
    let mut walk = Walk::new(moves, &CoverState::new(problem), &others, Rule { target, is_capped: false });
    let mut order = Vec::with_capacity(set.len());
    while let Some(group) = walk.next() {
        // From the narrow to the wide: an image that shares with few frees something before all are gone.
        let narrowest = |user: &u32| {
            let groups = problem.groups_of[place(*user)].iter().map(|group| &problem.groups[place(*group)]);
            groups.filter(|group| group.weight != Weight::default()).map(|group| group.users.len()).min()
        };
        let mut users = problem.groups[place(group)].users.clone();
        users.sort_by_cached_key(|user| (narrowest(user), *user));
        let taken: BTreeSet<u32> = walk.take(group).into_iter().collect();
        order.extend(users.into_iter().filter(|user| taken.contains(user)));
    }
    // What frees nothing, should it be in the set, goes last.
    let placed: BTreeSet<u32> = order.iter().copied().collect();
    order.extend(chosen.difference(&placed));
    order
}

/// How moves are compared.
#[derive(Clone, Copy, Debug)]
struct Rule {
    target: Weight,
    /// More than is still wanted counts for nothing.
    is_capped: bool,
}

impl Rule {
    /// What a move gives towards the target, by its cost.
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

/// What holds of a problem's moves before anything is taken. There is one move for each group.
pub(super) struct Moves<'a> {
    problem: &'a Problem,
    /// For each group, those whose users have it, too: their moves free it. Itself among them.
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

/// A greedy walk: which moves there still are, and the best of them.
struct Walk<'m, 'a> {
    moves: &'m Moves<'a>,
    rule: Rule,
    state: CoverState<'a>,
    gains: Vec<Weight>,
    costs: Vec<u128>,
    /// A user of them may not go.
    barred: Vec<bool>,
    heap: BinaryHeap<HeapEntry>,
    /// Groups that only one user keeps now, and whose moves count them because of that.
    alone: Vec<bool>,
}

/// A move and how good it was when it came in here.
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

    /// The best move that gives anything; the first by number among equals.
    fn next(&mut self) -> Option<u32> {
        while let Some(top) = self.heap.pop() {
            match self.entry(top.group) {
                Some(now) if now.ratio.total_cmp(&top.ratio) == Ordering::Equal => return Some(top.group),
                // It has become another since.
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

    /// Takes what is left of a group's users, and returns them.
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
                    // From now on every move with the last user frees it.
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

    /// Changes the gains of all moves that free a group, of which this is the last user if it has but one.
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

/// Goes on from a set with the best moves until it gives enough, and at each step looks for the cheapest single move
/// that would end it there. `None`: without the barred users nothing gives enough.
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
    // The last steps are the ones where a better end is near; looking at all ends of all steps is for few moves.
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
    /// The cheapest move that reaches the target at once, if it makes the whole cheaper than this.
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

/// Leaves out what is not needed for the target, the most expensive first. Returns the images that stay.
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

/// Adds each move in turn and leaves out what it makes needless; keeps the first that makes it cheaper, and goes on.
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

/// Puts each image back in turn, bars it, and finds another way to the target.
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
        // What is looked for here has a budget of its own: one look at the ends is what `size` pays for.
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

/// The best is the largest; among equals the first by number.
impl Ord for HeapEntry {
    fn cmp(&self, other: &Self) -> Ordering {
        self.ratio.total_cmp(&other.ratio).then(other.group.cmp(&self.group))
    }
}
