//! The set-cover problem: images, groups of layers that the same images use, and the images selected so far.

use std::collections::HashMap;

use crate::{
    image::{ByteSize, ImageId},
    ports::{Freed, LayerGraph},
};

/// Freed bytes and inodes. The type is wide enough for any sum (`docs/spec/gc.md W21`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Weight {
    pub(super) bytes: u128,
    pub(super) inodes: u128,
}

impl Weight {
    pub(super) fn of(freed: Freed) -> Self {
        Self { bytes: freed.bytes.0.into(), inodes: freed.inodes.into() }
    }

    pub(super) fn narrowed(self) -> Freed {
        let narrow = |number: u128| u64::try_from(number).unwrap_or(u64::MAX);
        Freed { bytes: ByteSize(narrow(self.bytes)), inodes: narrow(self.inodes) }
    }

    pub(super) fn meets(self, wanted: Self) -> bool {
        self.bytes >= wanted.bytes && self.inodes >= wanted.inodes
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self { bytes: self.bytes + other.bytes, inodes: self.inodes + other.inodes }
    }

    pub(super) fn less(self, other: Self) -> Self {
        Self { bytes: self.bytes.saturating_sub(other.bytes), inodes: self.inodes.saturating_sub(other.inodes) }
    }
}

/// The layers that exactly these candidates use. The removal of all these candidates frees the layers.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) users: Vec<usize>,
    pub(super) weight: Weight,
}

/// Candidates and their groups. A candidate with a shared group also has its own group, for a move of it alone.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) images: Vec<ImageId>,
    pub(super) costs: Vec<u64>,
    pub(super) groups: Vec<Group>,
    pub(super) groups_of: Vec<Vec<usize>>,
}

impl Problem {
    pub(super) fn new(graph: &LayerGraph, mut candidates: Vec<(&ImageId, u64)>) -> Self {
        candidates.sort_unstable();
        candidates.dedup_by_key(|(image, _)| *image);

        let mut users = vec![LayerUsers::None; graph.layers.len()];
        let mut next = candidates.iter().enumerate().peekable();
        // Both lists are sorted by image, so one walk joins them.
        for (image, parts) in &graph.images {
            while next.next_if(|(_, (candidate, _))| *candidate < image).is_some() {}
            let user = next.next_if(|(_, (candidate, _))| *candidate == image).map(|(user, _)| user);
            for part in parts {
                if let Some(users) = users.get_mut(*part as usize) {
                    users.add(user);
                }
            }
        }

        let mut problem = Self {
            images: candidates.iter().map(|(image, _)| (*image).clone()).collect(),
            costs: candidates.iter().map(|(_, cost)| *cost).collect(),
            groups: Vec::new(),
            groups_of: vec![Vec::new(); candidates.len()],
        };
        // Most layers have only one user. Their groups are in an array, which is faster than a map.
        let mut own: Vec<Option<usize>> = vec![None; candidates.len()];
        let mut shared: HashMap<Vec<usize>, usize> = HashMap::new();
        for (layer, users) in graph.layers.iter().zip(users).filter(|(layer, _)| !layer.held) {
            let group = match users {
                LayerUsers::None | LayerUsers::Outside => continue,
                LayerUsers::One(user) => *own[user].get_or_insert_with(|| problem.group(vec![user])),
                LayerUsers::Several(users) => {
                    *shared.entry(users).or_insert_with_key(|users| problem.group(users.clone()))
                }
            };
            let weight = Weight { bytes: layer.bytes.0.into(), inodes: layer.inodes_expected().into() };
            problem.groups[group].weight = problem.groups[group].weight.plus(weight);
        }
        for (user, own) in own.iter().enumerate() {
            if own.is_none() && !problem.groups_of[user].is_empty() {
                problem.group(vec![user]);
            }
        }
        problem
    }

    pub(super) fn independent(images: &[(u64, ByteSize)]) -> Self {
        let costs = images.iter().map(|(cost, _)| *cost).collect();
        let groups_of = vec![Vec::new(); images.len()];
        let mut problem = Self { images: Vec::new(), costs, groups: Vec::new(), groups_of };
        for (user, (_, frees)) in images.iter().enumerate() {
            let group = problem.group(vec![user]);
            problem.groups[group].weight.bytes = frees.0.into();
        }
        problem
    }

    fn group(&mut self, users: Vec<usize>) -> usize {
        let group = self.groups.len();
        for user in &users {
            self.groups_of[*user].push(group);
        }
        self.groups.push(Group { users, weight: Weight::default() });
        group
    }

    pub(super) fn all(&self) -> Weight {
        self.groups.iter().fold(Weight::default(), |sum, group| sum.plus(group.weight))
    }
}

#[derive(Clone)]
enum LayerUsers {
    None,
    One(usize),
    Several(Vec<usize>),
    /// An image that stays uses the layer.
    Outside,
}

impl LayerUsers {
    /// Adds a user of the layer. `None`: an image that stays. Candidates must be added in ascending order.
    fn add(&mut self, user: Option<usize>) {
        match (&mut *self, user) {
            (Self::Outside, _) => {}
            (_, None) => *self = Self::Outside,
            (Self::None, Some(user)) => *self = Self::One(user),
            (Self::One(before), Some(user)) if *before != user => *self = Self::Several(vec![*before, user]),
            (Self::Several(users), Some(user)) if users.last() != Some(&user) => users.push(user),
            (Self::One(_) | Self::Several(_), Some(_)) => {}
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct CoverState<'a> {
    pub(super) problem: &'a Problem,
    pub(super) taken: Vec<bool>,
    pub(super) left: Vec<usize>,
    pub(super) freed: Weight,
    pub(super) cost: u128,
}

impl<'a> CoverState<'a> {
    pub(super) fn new(problem: &'a Problem) -> Self {
        let left = problem.groups.iter().map(|group| group.users.len()).collect();
        Self { problem, taken: vec![false; problem.costs.len()], left, freed: Weight::default(), cost: 0 }
    }

    pub(super) fn take(&mut self, user: usize) {
        if std::mem::replace(&mut self.taken[user], true) {
            return;
        }
        self.cost += u128::from(self.problem.costs[user]);
        for group in &self.problem.groups_of[user] {
            let left = &mut self.left[*group];
            *left -= 1;
            if *left == 0 {
                self.freed = self.freed.plus(self.problem.groups[*group].weight);
            }
        }
    }

    pub(super) fn put_back(&mut self, user: usize) {
        if !std::mem::replace(&mut self.taken[user], false) {
            return;
        }
        self.cost -= u128::from(self.problem.costs[user]);
        for group in &self.problem.groups_of[user] {
            let left = &mut self.left[*group];
            *left += 1;
            if *left == 1 {
                self.freed = self.freed.less(self.problem.groups[*group].weight);
            }
        }
    }

    pub(super) fn loss(&self, user: usize) -> Weight {
        let groups = self.problem.groups_of[user].iter();
        groups
            .filter(|group| self.left[**group] == 0)
            .fold(Weight::default(), |sum, group| sum.plus(self.problem.groups[*group].weight))
    }

    pub(super) fn set(&self) -> Vec<usize> {
        (0..self.taken.len()).filter(|user| self.taken[*user]).collect()
    }
}
