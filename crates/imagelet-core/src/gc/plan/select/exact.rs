//! The exact search for the best set, for few candidates.

use super::set_cover::{CoverState, Problem, Weight, number, place};

/// Bound of visited partial sets; a few milliseconds.
const NODES_MAX: usize = 20_000;
/// One bit per candidate in a word; a larger search would not end in time.
pub(super) const CANDIDATES_MAX: usize = 64;
/// A visit costs as much as its groups; with more groups fewer sets are visited.
const GROUPS_USUAL: usize = 100;

/// The best set, or the given one where the search finds none or would not end in time.
pub(super) fn improve(problem: &Problem, target: Weight, best: Vec<u32>) -> Vec<u32> {
    let users = users_of_groups(problem);
    if users.len() > CANDIDATES_MAX {
        return best;
    }
    match searched(problem, &users, target, &best).best {
        Some(found) => users.iter().copied().filter(|user| found & bit_of(&users, *user) != 0).collect(),
        None => best,
    }
}

/// How many partial sets the search visits.
#[cfg(test)]
pub(super) fn visits(problem: &Problem, target: Weight, best: &[u32]) -> usize {
    let search = searched(problem, &users_of_groups(problem), target, best);
    nodes_max(search.groups.len()) - search.nodes_left
}

fn searched(problem: &Problem, users: &[u32], target: Weight, best: &[u32]) -> Search {
    let groups: Vec<Part> = problem
        .groups
        .iter()
        .filter(|group| group.weight != Weight::default())
        .map(|group| Part { users: group.users.iter().map(|user| bit_of(users, *user)).sum(), weight: group.weight })
        .collect();
    let nodes_left = nodes_max(groups.len());
    let costs = users.iter().map(|user| problem.costs[place(*user)]).collect();
    let best_cost = CoverState::of(problem, best).cost;
    let mut search = Search { costs, groups, target, best_cost, best: None, nodes_left };
    search.visit(0, 0, 0);
    search
}

fn users_of_groups(problem: &Problem) -> Vec<u32> {
    (0..number(problem.costs.len())).filter(|user| !problem.groups_of[place(*user)].is_empty()).collect()
}

fn bit_of(users: &[u32], user: u32) -> u64 {
    users.binary_search(&user).map_or(0, |bit| 1_u64 << bit)
}

fn nodes_max(groups: usize) -> usize {
    NODES_MAX * GROUPS_USUAL / groups.max(GROUPS_USUAL)
}

struct Part {
    users: u64,
    weight: Weight,
}

struct Search {
    costs: Vec<u64>,
    groups: Vec<Part>,
    target: Weight,
    best_cost: u128,
    best: Option<u64>,
    nodes_left: usize,
}

/// The gains of a partial set and its bounds.
struct Outlook {
    freed: Weight,
    possible: Weight,
    /// The upper bound of each undecided candidate's gain, as shares of the target.
    bytes: Vec<f64>,
    inodes: Vec<f64>,
}

impl Search {
    /// Visits all sets that contain `taken` and exclude `out`.
    fn visit(&mut self, taken: u64, out: u64, cost: u128) {
        if self.nodes_left == 0 {
            return;
        }
        self.nodes_left -= 1;
        let outlook = self.outlook(taken, out);
        if outlook.freed.meets(self.target) {
            if cost < self.best_cost {
                (self.best_cost, self.best) = (cost, Some(taken));
            }
            return;
        }
        if !outlook.possible.meets(self.target) {
            return;
        }
        let missing = |freed: u128, target: u128| target.saturating_sub(freed) as f64 / target.max(1) as f64;
        let undecided: Vec<usize> = (0..self.costs.len()).filter(|bit| (taken | out) & (1 << bit) == 0).collect();
        let bytes = self.cheapest(&undecided, &outlook.bytes, missing(outlook.freed.bytes, self.target.bytes));
        let inodes = self.cheapest(&undecided, &outlook.inodes, missing(outlook.freed.inodes, self.target.inodes));
        // Costs are integers, so a better set is better by at least one. The last bits of a float sum prove nothing.
        if cost as f64 + bytes.max(inodes) * (1.0 - 1e-9) > self.best_cost as f64 - 1.0 + f64::EPSILON {
            return;
        }
        let worth = |bit: &usize| (outlook.bytes[*bit] + outlook.inodes[*bit]) / (self.costs[*bit] as f64).max(1e-3);
        let next = undecided.iter().copied().max_by(|a, b| worth(a).total_cmp(&worth(b)).then(b.cmp(a)));
        if let Some(next) = next {
            self.visit(taken | 1 << next, out, cost + u128::from(self.costs[next]));
            self.visit(taken, out | 1 << next, cost);
        }
    }

    /// Splits each group's gain among its undecided users, by cost.
    ///
    /// This is an upper bound: a freed group had all its users in the set.
    fn outlook(&self, taken: u64, out: u64) -> Outlook {
        let none = vec![0.0; self.costs.len()];
        let mut outlook =
            Outlook { freed: Weight::default(), possible: Weight::default(), bytes: none.clone(), inodes: none };
        let share = |weight: u128, target: u128| if target == 0 { 0.0 } else { weight as f64 / target as f64 };
        for part in self.groups.iter().filter(|part| part.users & out == 0) {
            outlook.possible = outlook.possible.plus(part.weight);
            let rest = part.users & !taken;
            if rest == 0 {
                outlook.freed = outlook.freed.plus(part.weight);
                continue;
            }
            let members = || (0..self.costs.len()).filter(|bit| rest & (1 << bit) != 0);
            let costs: f64 = members().map(|bit| self.costs[bit] as f64).sum();
            for bit in members() {
                let fraction =
                    if costs > 0.0 { self.costs[bit] as f64 / costs } else { 1.0 / f64::from(rest.count_ones()) };
                outlook.bytes[bit] += share(part.weight.bytes, self.target.bytes) * fraction;
                outlook.inodes[bit] += share(part.weight.inodes, self.target.inodes) * fraction;
            }
        }
        outlook
    }

    /// The lower bound of the missing cost, with fractional candidates.
    fn cheapest(&self, undecided: &[usize], gains: &[f64], missing: f64) -> f64 {
        let mut order: Vec<usize> = undecided.iter().copied().filter(|bit| gains[*bit] > 0.0).collect();
        let price = |bit: usize| self.costs[bit] as f64 / gains[bit];
        order.sort_by(|a, b| price(*a).total_cmp(&price(*b)).then(a.cmp(b)));
        let (mut missing, mut cost) = (missing, 0.0);
        for bit in order {
            if missing <= 0.0 {
                break;
            }
            cost += self.costs[bit] as f64 * (missing / gains[bit]).min(1.0);
            missing -= gains[bit];
        }
        cost
    }
}
