//! Random graphs of objects, compared with a model.

use std::collections::{BTreeMap, BTreeSet};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use super::mutator::{Mutator, Type, array_type, load, plain_array_type, store, struct_type};
use crate::object_type::Elements;

/// What the model knows about an object: its words after the header, and which ones may be
/// references.
struct Object {
    words: Vec<u64>,
    references: Vec<usize>,
}

struct World {
    mutator: Mutator,
    objects: BTreeMap<usize, Object>,
    roots: Vec<usize>,
    rng: StdRng,
    structs: Vec<(Type, usize, Vec<usize>)>,
    references: Type,
    plain: Type,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut structs = Vec::new();
        for _ in 0..12 {
            let words = if rng.random_bool(0.8) { rng.random_range(0..9) } else { rng.random_range(0..60) };
            let references: Vec<usize> = (0..words).filter(|_| rng.random_bool(0.5)).collect();
            let ty = struct_type(words as u32 + 1, references.iter().map(|word| *word as u32 + 1));
            structs.push((ty, words, references));
        }
        Self {
            mutator: Mutator::new(),
            objects: BTreeMap::new(),
            roots: Vec::new(),
            rng,
            structs,
            references: array_type(Elements::References),
            plain: plain_array_type(3),
        }
    }

    /// A word for a reference field: in most cases an object.
    fn reference(&mut self) -> u64 {
        match self.rng.random_range(0..10) {
            0 => 0,
            1 => u64::from(self.rng.random::<u32>()) | 1,
            2 => 0x6b1d_e7f5_0000_0000 | self.rng.random_range(0..10),
            _ => self.reachable().map_or(0, |object| object as u64),
        }
    }

    /// An object that is reached in a few steps from a root.
    fn reachable(&mut self) -> Option<usize> {
        let mut object = *self.roots.choose(&mut self.rng)?;
        for _ in 0..self.rng.random_range(0..5) {
            let Object { words, references } = &self.objects[&object];
            let next = references.iter().map(|word| words[*word] as usize);
            let next: Vec<usize> = next.filter(|next| self.objects.contains_key(next)).collect();
            match next.choose(&mut self.rng) {
                Some(next) => object = *next,
                None => break,
            }
        }
        Some(object)
    }

    fn allocate(&mut self) {
        let length = match self.rng.random_range(0..100) {
            0 => self.rng.random_range(2000..9000),
            1 => self.rng.random_range(200..2500),
            2..10 => self.rng.random_range(8..80),
            _ => self.rng.random_range(0..8),
        };
        let (ty, words, references) = match self.rng.random_range(0..4) {
            0 => {
                let elements = (0..length).map(|_| self.rng.random()).collect::<Vec<u64>>();
                (self.plain, [&[length], elements.as_slice()].concat(), Vec::new())
            }
            1 => {
                let elements = (0..length).map(|_| self.reference()).collect::<Vec<_>>();
                let references = (1..=length as usize).collect();
                (self.references, [&[length], elements.as_slice()].concat(), references)
            }
            _ => {
                let (ty, words, references) =
                    self.structs.choose(&mut self.rng).expect("there are types").clone();
                let fields = (0..words).map(|word| match references.contains(&word) {
                    true => self.reference(),
                    false => self.rng.random(),
                });
                (ty, fields.collect(), references)
            }
        };
        let object = self.mutator.object(ty, &words);
        let end = object + 8 + 8 * words.len();
        assert!(self.objects.range(object..end).next().is_none(), "overlaps one that follows");
        if let Some((before, previous)) = self.objects.range(..object).next_back() {
            assert!(before + 8 + 8 * previous.words.len() <= object, "overlaps the previous one");
        }
        self.objects.insert(object, Object { words, references });
        if self.rng.random_bool(0.3) {
            self.roots.push(object);
        }
    }

    /// Changes a reference of an object that is reachable.
    fn change(&mut self) {
        let Some(object) = self.reachable() else { return };
        let value = self.reference();
        let Object { words, references } = self.objects.get_mut(&object).expect("it is reachable");
        if let Some(word) = references.choose(&mut self.rng) {
            words[*word] = value;
            store(object + 8 + 8 * word, value);
        }
    }

    /// Collects; compares.
    fn collect(&mut self) {
        let mut reached: BTreeSet<usize> = self.roots.iter().copied().collect();
        let mut pending = self.roots.clone();
        while let Some(object) = pending.pop() {
            let Object { words, references } = &self.objects[&object];
            let next = references.iter().map(|word| words[*word] as usize);
            pending.extend(next.filter(|next| self.objects.contains_key(next) && reached.insert(*next)));
        }
        self.mutator.begin();
        let mut roots: Vec<u64> = self.roots.iter().map(|root| *root as u64).collect();
        let objects: Vec<usize> = self.objects.keys().copied().collect();
        // Words that, as the model knows, are not the start of an object.
        for _ in 0..200 {
            let word = match self.rng.random_range(0..4) {
                0 => self.rng.random(),
                1 => self.rng.random_range(0..1000),
                _ => {
                    let Some(near) = objects.choose(&mut self.rng) else { continue };
                    *near as u64 + self.rng.random_range(0..2000)
                }
            };
            if !self.objects.contains_key(&(word as usize)) {
                roots.push(word);
            }
        }
        for root in roots {
            assert_eq!(
                self.mutator.heap.mark_ambiguous(root),
                self.objects.contains_key(&(root as usize)),
                "{root:x}"
            );
        }
        self.mutator.heap.trace(&mut |word| assert_eq!(word >> 47, 0x6b1d_e7f5_0000_0000 >> 47));
        self.mutator.finish();
        self.mutator.check();
        assert_eq!(self.mutator.objects(), reached.len());
        self.objects.retain(|object, _| reached.contains(object));
        for (object, Object { words, .. }) in &self.objects {
            for (index, word) in words.iter().enumerate() {
                assert_eq!(load(object + 8 + 8 * index), *word, "word {index} of {object:x}");
            }
        }
    }
}

#[test]
fn random_graphs_keep_what_is_reachable_and_nothing_else() {
    for seed in 0..10 {
        let mut world = World::new(seed);
        for _ in 0..25 {
            for _ in 0..world.rng.random_range(0..1500) {
                world.allocate();
                world.change();
            }
            // Sometimes nearly everything dies.
            let kept = if world.rng.random_bool(0.2) { 3 } else { 300 };
            while world.roots.len() > kept {
                let index = world.rng.random_range(0..world.roots.len());
                world.roots.swap_remove(index);
            }
            world.collect();
        }
        assert!(world.mutator.heap.bytes() < 256 << 20, "{}", world.mutator.heap.bytes());
    }
}
