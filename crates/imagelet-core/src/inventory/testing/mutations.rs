//! Deliberate mutations that the model test must find: each changes the state before or after a step of the inventory.

use std::sync::Arc;

use crate::{
    image::{Image, ImageId},
    inventory::{InventoryState, detect::Survey},
};

/// One violation of the rules of leases and removals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    /// A request leases nothing.
    NoLease,
    /// A lease is granted on an answer that a removal has overtaken.
    OldAnswerBelieved,
    /// A request during a removal does not wait for it.
    RemovalNotMarked,
    /// An empty list of containers is trusted at once.
    EmptyListBelieved,
    /// An image missing its last container counts as unused at once.
    HalfListBelieved,
    /// Leases end with the process.
    LeasesForgotten,
    /// Any new container ends any lease of its image.
    AnyContainerServes,
    /// A pass that ran during the last check does not count.
    NewestPassIgnored,
    /// Pins are not checked again.
    PinsNotAskedAgain,
    /// An image that a task works with may be removed.
    HoldsIgnored,
    /// Images mounted as volumes count as unused.
    VolumesIgnored,
    /// Images of sandboxes count as unused.
    SandboxesIgnored,
    /// A name that an image got after the plan does not count.
    NewNamesIgnored,
    /// A container whose volumes the runtime failed to report has none.
    FailedAnswerBelieved,
}

impl InventoryState {
    fn has(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    /// Drops a part of what the runtime reported.
    pub(crate) fn mutate_survey(&self, mut survey: Survey) -> Survey {
        match self.mutation {
            Some(Mutation::VolumesIgnored) => survey.mounts.values_mut().for_each(Vec::clear),
            Some(Mutation::SandboxesIgnored) => survey.sandboxes.clear(),
            _ => {}
        }
        survey
    }

    pub(crate) fn mutate_names(&self, planned: &Arc<Image>, found: Arc<Image>) -> Arc<Image> {
        if self.has(Mutation::NewNamesIgnored) { Arc::clone(planned) } else { found }
    }

    pub(crate) fn ignores_mount_errors(&self) -> bool {
        self.has(Mutation::FailedAnswerBelieved)
    }

    /// Forgets what the last pass saw in use.
    pub(crate) fn mutate_before_pass(&mut self) {
        if self.has(Mutation::EmptyListBelieved) || self.has(Mutation::HalfListBelieved) {
            self.snapshot = None;
            self.watch.containers = 0;
            self.memory.images.values_mut().for_each(|usage| usage.has_containers = false);
        }
    }

    pub(crate) fn mutate_before_lease(&mut self, id: &ImageId) {
        if self.has(Mutation::OldAnswerBelieved) {
            self.leases.forget_removals(id);
        }
    }

    pub(crate) fn mutate_after_lease(&mut self, id: &ImageId) {
        if self.has(Mutation::NoLease) {
            self.leases.end(id);
        }
    }

    pub(crate) fn mutate_before_serving(&mut self, survey: &Survey) {
        if self.has(Mutation::AnyContainerServes) {
            let all = survey.pods.iter().flat_map(|pod| &pod.containers);
            all.for_each(|container| self.leases.end(&ImageId::new(&container.image_id)));
        }
    }

    pub(crate) fn mutate_before_removal(&mut self, id: &ImageId) {
        match (self.mutation, &mut self.snapshot) {
            (Some(Mutation::NewestPassIgnored), Some(snapshot)) => {
                let entries = &mut Arc::make_mut(snapshot).entries;
                let of_image = entries.iter_mut().filter(|entry| entry.image.id == *id);
                of_image.for_each(|entry| Arc::make_mut(entry).in_use_by.clear());
            }
            (Some(Mutation::PinsNotAskedAgain), _) => self.pins.clear(),
            (Some(Mutation::HoldsIgnored), _) => self.leases.release_all(id),
            _ => {}
        }
    }

    pub(crate) fn mutate_after_removal_began(&mut self, id: &ImageId, has_begun: bool) {
        if has_begun && self.has(Mutation::RemovalNotMarked) {
            self.leases.unmark(id);
        }
    }

    pub(crate) fn keeps_leases(&self) -> bool {
        !self.has(Mutation::LeasesForgotten)
    }
}
