//! A greedy search for the images to remove: takes the best moves first, then puts back images that are not needed.

use std::{cmp::Reverse, collections::BinaryHeap};

use super::set_cover::{CoverState, Problem, Weight};

/// With more groups, the search runs once, not twice: a run takes milliseconds, and a single move has little effect.
const GROUPS_FEW: usize = 4_000;
/// Limit of comparisons between groups. Above the limit, the search underestimates what a move frees.
const RELATIONS_MAX: usize = 8_000_000;

/// The images to remove for the target, in removal order. All candidates together must free the target.
pub(super) fn choose(moves: &Moves<'_>, target: Weight) -> Vec<usize> {
    let rules: &[bool] = if moves.problem.groups.len() > GROUPS_FEW { &[true] } else { &[true, false] };
    let fill = |is_capped: &bool| {
        let mut walk = Walk::new(moves, target, *is_capped);
        let mut order = Vec::new();
        while !walk.state.freed.meets(target) {
            let group = walk.next().expect("all candidates together free enough");
            order.extend(walk.take(group));
        }
        leave_out(&mut walk.state, target);
        order.retain(|user| walk.state.taken[*user]);
        (walk.state.cost, order)
    };
    let (_, order) = rules.iter().map(fill).min_by_key(|(cost, _)| *cost).expect("a rule was tried");
    order
}

/// The moves that are possible before any removal. Each move removes all images that use one group of layers.
pub(super) struct Moves<'a> {
    problem: &'a Problem,
    /// For each group: all groups whose moves free this group, because their users include all users of this group.
    wider: Vec<Vec<usize>>,
    gains: Vec<Weight>,
    costs: Vec<u128>,
}

impl<'a> Moves<'a> {
    pub(super) fn new(problem: &'a Problem) -> Self {
        let groups = problem.groups.len();
        let mut wider: Vec<Vec<usize>> = vec![Vec::new(); groups];
        let mut gains = vec![Weight::default(); groups];
        let mut work = RELATIONS_MAX;
        let mut shared = vec![0; groups];
        for (this, group) in problem.groups.iter().enumerate() {
            let touched = group.users.iter().map(|user| problem.groups_of[*user].len()).sum();
            if work < touched {
                wider[this].push(this);
            } else {
                work -= touched;
                let all = || group.users.iter().flat_map(|user| &problem.groups_of[*user]);
                all().for_each(|other| shared[*other] += 1);
                let first = &problem.groups_of[group.users[0]];
                wider[this].extend(first.iter().filter(|other| shared[**other] == group.users.len()));
                all().for_each(|other| shared[*other] = 0);
            }
            for other in &wider[this] {
                gains[*other] = gains[*other].plus(group.weight);
            }
        }
        let cost = |users: &Vec<usize>| users.iter().map(|user| u128::from(problem.costs[*user])).sum();
        let costs = problem.groups.iter().map(|group| cost(&group.users)).collect();
        Self { problem, wider, gains, costs }
    }
}

struct Walk<'m, 'a> {
    moves: &'m Moves<'a>,
    target: Weight,
    /// Whether only the part of a gain counts that is still missing.
    is_capped: bool,
    state: CoverState<'a>,
    gains: Vec<Weight>,
    costs: Vec<u128>,
    heap: BinaryHeap<Move>,
    /// Whether a group has only one remaining user. Every move that removes this user then counts the group.
    alone: Vec<bool>,
}

/// The ratio of gain to cost, as sortable bits, and the group. The largest ratio is best, then the lowest group.
type Move = (u64, Reverse<usize>);

impl<'m, 'a> Walk<'m, 'a> {
    fn new(moves: &'m Moves<'a>, target: Weight, is_capped: bool) -> Self {
        let problem = moves.problem;
        let mut walk = Self {
            gains: moves.gains.clone(),
            costs: moves.costs.clone(),
            heap: BinaryHeap::new(),
            alone: vec![false; problem.groups.len()],
            moves,
            target,
            is_capped,
            state: CoverState::new(problem),
        };
        walk.heap = (0..problem.groups.len()).filter_map(|group| walk.entry(group)).collect();
        walk
    }

    fn next(&mut self) -> Option<usize> {
        while let Some(top) = self.heap.pop() {
            let (_, Reverse(group)) = top;
            match self.entry(group) {
                Some(now) if now == top => return Some(group),
                // The ratio has changed since the insertion, so the move is inserted again.
                Some(now) => self.heap.push(now),
                None => {}
            }
        }
        None
    }

    fn entry(&self, group: usize) -> Option<Move> {
        if self.state.left[group] == 0 {
            return None;
        }
        let ratio = self.ratio(self.gains[group], self.costs[group]);
        (ratio > 0.0).then(|| (ratio.to_bits(), Reverse(group)))
    }

    fn ratio(&self, gain: Weight, cost: u128) -> f64 {
        let need = self.target.less(self.state.freed);
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

    /// Takes the remaining images of a group, and returns them in removal order. Images with a layer that few images
    /// use are first, because such a layer is freed early.
    fn take(&mut self, group: usize) -> Vec<usize> {
        let problem = self.moves.problem;
        let mut users = problem.groups[group].users.clone();
        users.retain(|user| !self.state.taken[*user]);
        let narrowest = |user: &usize| {
            let groups = problem.groups_of[*user].iter().map(|group| &problem.groups[*group]);
            groups.filter(|group| group.weight != Weight::default()).map(|group| group.users.len()).min()
        };
        users.sort_by_cached_key(|user| (narrowest(user), *user));
        let mut touched = Vec::new();
        for user in &users {
            self.take_user(*user, &mut touched);
        }
        touched.sort_unstable();
        touched.dedup();
        let entries: Vec<Move> = touched.into_iter().filter_map(|group| self.entry(group)).collect();
        self.heap.extend(entries);
        users
    }

    fn take_user(&mut self, user: usize, touched: &mut Vec<usize>) {
        let problem = self.moves.problem;
        self.state.take(user);
        for group in &problem.groups_of[user] {
            self.costs[*group] -= u128::from(problem.costs[user]);
            touched.push(*group);
            match self.state.left[*group] {
                0 => self.count(*group, user, touched, Weight::less),
                1 => {
                    self.count(*group, user, touched, Weight::less);
                    let users = &problem.groups[*group].users;
                    if let Some(last) = users.iter().find(|user| !self.state.taken[**user]) {
                        self.alone[*group] = true;
                        self.count(*group, *last, touched, Weight::plus);
                    }
                }
                _ => {}
            }
        }
    }

    /// Changes the gains of all moves that free a group. If the group is `alone`, `last` is its only remaining user.
    fn count(&mut self, group: usize, last: usize, touched: &mut Vec<usize>, change: fn(Weight, Weight) -> Weight) {
        let moves = self.moves;
        let is_alone = self.alone[group];
        let wider = if is_alone { &moves.problem.groups_of[last] } else { &moves.wider[group] };
        let weight = moves.problem.groups[group].weight;
        for other in wider {
            self.gains[*other] = change(self.gains[*other], weight);
            touched.push(*other);
        }
    }
}

/// Puts back images that are not needed for the target, the most expensive image first.
fn leave_out(state: &mut CoverState<'_>, target: Weight) {
    let mut slack = state.freed.less(target);
    let mut set = state.set();
    set.sort_by_key(|user| (Reverse(state.problem.costs[*user]), *user));
    for user in set {
        let loss = state.loss(user);
        if slack.meets(loss) {
            state.put_back(user);
            slack = slack.less(loss);
        }
    }
}
