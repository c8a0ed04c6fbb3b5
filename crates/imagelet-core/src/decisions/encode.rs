//! Turns collections into lines that tell how each differs from the one before.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash},
};

use super::{
    clock,
    entry::{Entry, Group, ImageLine, InputLine, LayersLine, RunLine, SameLine},
    record::{Decision, LayersInput, Run, RunInput},
};

/// What the lines of a chain have told so far, as hashes: 24 bytes an image, not the images themselves.
#[derive(Debug)]
pub(super) struct Chain {
    name: String,
    number: u64,
    images: Vec<Told>,
    layers: Option<ToldLayers>,
    by: String,
    shadow: bool,
    /// Collections that decided nothing new and are not written yet.
    same: Option<SameLine>,
}

#[derive(Clone, Copy, Debug)]
struct Told {
    key: u64,
    content: u64,
    /// Zero: nothing was decided.
    decided: u64,
}

#[derive(Debug, Default)]
struct ToldLayers {
    numbers: HashMap<u64, u32>,
    contents: Vec<u64>,
    order: Vec<u32>,
    images: HashMap<String, u64>,
    certainty: serde_json::Value,
}

impl Chain {
    /// Begins a chain with a collection, which is told whole.
    pub(super) fn begin(name: String, run: Run) -> (Self, Entry) {
        let mut chain =
            Self { name, number: 0, images: Vec::new(), layers: None, by: String::new(), shadow: false, same: None };
        let line = chain.line(run, true);
        (chain, Entry::Run(Box::new(line)))
    }

    /// The lines that tell of one more collection: none where it decided nothing new, and is only counted.
    pub(super) fn go_on(&mut self, run: Run) -> Vec<Entry> {
        let is_quiet = run.outcomes.is_empty()
            && run.head.failures.is_empty()
            && run.head.claimed == 0
            && (run.head.by == self.by && run.head.shadow == self.shadow);
        let had_layers = self.layers.is_some();
        let counted = self.same.as_ref().map(|same| (same.count, same.first));
        let line = self.line(run, false);
        let input = line.input.unwrap_or_default();
        let is_same = input.set.is_empty()
            && input.gone.is_empty()
            && input.layers.is_some() == had_layers
            && input.layers.as_ref().is_none_or(LayersLine::is_same)
            && line.decided.is_empty();
        if is_quiet && is_same {
            let (count, first) = counted.unwrap_or((0, line.head.at));
            self.same = Some(SameLine {
                chain: line.chain,
                number: 0,
                count: count + 1,
                first,
                head: line.head,
                common: input.common,
                clocks: input.clocks,
            });
            return Vec::new();
        }
        let mut lines: Vec<Entry> = self.settle().into_iter().collect();
        self.number += 1;
        lines.push(Entry::Run(Box::new(RunLine { number: self.number, input: Some(input), ..line })));
        lines
    }

    /// How many collections are counted and not written yet.
    pub(super) fn counted(&self) -> u64 {
        self.same.as_ref().map_or(0, |same| same.count)
    }

    /// The line of those that are counted and not written yet.
    pub(super) fn settle(&mut self) -> Option<Entry> {
        let same = self.same.take()?;
        self.number += 1;
        Some(Entry::Same(Box::new(SameLine { number: self.number, ..same })))
    }

    fn line(&mut self, run: Run, is_whole: bool) -> RunLine {
        let Run { head, mut input, decisions, outcomes } = run;
        input.images.sort_by(|a, b| a.key.cmp(&b.key));
        let keys: Vec<u64> = input.images.iter().map(|image| hash(&image.key)).collect();
        let decided_before: HashMap<u64, u64> = self.images.iter().map(|told| (told.key, told.decided)).collect();
        let places: HashMap<&str, u32> =
            input.images.iter().zip(0..).map(|(image, place)| (image.key.as_str(), place)).collect();
        let mut decided_now: HashMap<u64, u64> = HashMap::new();
        let mut changed = Vec::new();
        for decision in decisions {
            let (key, decided) = (hash(&decision.key), hash(&(decision.goes, &decision.code)));
            decided_now.insert(key, decided);
            if decided_before.get(&key) != Some(&decided) {
                changed.push(decision);
            }
        }
        let decided = groups(changed, is_whole.then_some(&places));
        let layers = input.layers.take().map(|layers| self.layers.get_or_insert_default().patch(layers));
        if layers.is_none() {
            self.layers = None;
        }
        let (set, gone) = self.images(&mut input, &keys, &decided_now);
        let RunInput { common, clocks, .. } = input;
        self.by.clone_from(&head.by);
        self.shadow = head.shadow;
        RunLine {
            chain: self.name.clone(),
            number: self.number,
            head,
            input: Some(InputLine { common, clocks, set, gone, layers }),
            left_out: None,
            decided,
            outcomes,
        }
    }

    /// The images that are new or changed, and the places of those that are gone.
    fn images(
        &mut self,
        input: &mut RunInput,
        keys: &[u64],
        decided: &HashMap<u64, u64>,
    ) -> (Vec<ImageLine>, Vec<u32>) {
        let contents: HashMap<u64, u64> = self.images.iter().map(|told| (told.key, told.content)).collect();
        let present: HashSet<u64> = keys.iter().copied().collect();
        let gone = self.images.iter().zip(0..).filter(|(told, _)| !present.contains(&told.key));
        let gone = gone.map(|(_, place)| place).collect();
        let (mut told, mut set) = (Vec::with_capacity(keys.len()), Vec::new());
        for (mut image, key) in input.images.drain(..).zip(keys) {
            clock::hide(&mut image.facts, &input.clocks);
            let content = hash(&(&image.names, image.size, image.facts.to_string()));
            told.push(Told { key: *key, content, decided: decided.get(key).copied().unwrap_or(0) });
            if contents.get(key) != Some(&content) {
                set.push(ImageLine { key: image.key, names: image.names, size: image.size, facts: image.facts });
            }
        }
        self.images = told;
        (set, gone)
    }
}

impl ToldLayers {
    fn patch(&mut self, now: LayersInput) -> LayersLine {
        let mut line = LayersLine::default();
        if self.certainty != now.certainty {
            self.certainty.clone_from(&now.certainty);
            line.certainty = now.certainty;
        }
        let mut order = Vec::with_capacity(now.layers.len());
        for (id, facts) in now.layers {
            let content = hash(&facts.to_string());
            let next = u32::try_from(self.contents.len()).unwrap_or(u32::MAX);
            let number = *self.numbers.entry(hash(&id)).or_insert(next);
            if number == next {
                self.contents.push(content);
                line.add.push((id, facts));
            } else if self.contents.get(number as usize) != Some(&content) {
                self.contents[number as usize] = content;
                line.change.push((number, facts));
            }
            order.push(number);
        }
        if order != self.order {
            line.order = Some(runs(&order));
        }
        let mut images = HashMap::with_capacity(now.images.len());
        for (image, layers) in now.images {
            let numbers: Vec<u32> = layers.iter().filter_map(|place| order.get(*place as usize).copied()).collect();
            let content = hash(&numbers);
            if self.images.get(&image) != Some(&content) {
                line.set.insert(image.clone(), numbers);
            }
            images.insert(image, content);
        }
        line.gone = self.images.keys().filter(|image| !images.contains_key(*image)).cloned().collect();
        line.gone.sort();
        (self.order, self.images) = (order, images);
        line
    }
}

/// Numbers as runs that follow one another.
fn runs(numbers: &[u32]) -> Vec<(u32, u32)> {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((first, length)) if first.checked_add(*length) == Some(*number) => *length += 1,
            _ => runs.push((*number, 1)),
        }
    }
    runs
}

fn groups(decisions: Vec<Decision>, places: Option<&HashMap<&str, u32>>) -> Vec<Group> {
    let mut groups: BTreeMap<(bool, String, String, String), Group> = BTreeMap::new();
    for Decision { key, goes, code, inputs, text } in decisions {
        let group = groups.entry((goes, code.clone(), text.clone(), inputs.to_string())).or_insert_with(|| Group {
            goes,
            code,
            inputs,
            text,
            ..Group::default()
        });
        match places.and_then(|places| places.get(key.as_str())) {
            Some(place) => group.at.push(*place),
            None => group.keys.push(key),
        }
    }
    groups.into_values().collect()
}

fn hash(content: &(impl Hash + ?Sized)) -> u64 {
    // The same in one process, which is all that is asked of it.
    BuildHasherDefault::<DefaultHasher>::default().hash_one(content)
}

/// The line without what is too long to keep: of the decisions those stay that let an image go.
pub(super) fn shortened(entry: Entry, length: u64) -> Entry {
    match entry {
        Entry::Run(mut run) => {
            let images = run.input.take().map(|input| input.set).unwrap_or_default();
            run.left_out = Some(length);
            // Places mean nothing without the images.
            run.decided.retain(|group| group.goes);
            for group in &mut run.decided {
                let places = std::mem::take(&mut group.at);
                group.keys.extend(places.iter().filter_map(|place| Some(images.get(*place as usize)?.key.clone())));
            }
            Entry::Run(run)
        }
        other => other,
    }
}

/// What is told of a collection without all it was decided on.
pub(super) fn outline(run: Run) -> Entry {
    let going = run.decisions.into_iter().filter(|decision| decision.goes).collect();
    let line = RunLine {
        head: run.head,
        left_out: Some(0),
        decided: groups(going, None),
        outcomes: run.outcomes,
        ..RunLine::default()
    };
    Entry::Run(Box::new(line))
}
