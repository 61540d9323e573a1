//! What administrators may want.

use signalbox::client::{Generation, IfExists, Milliseconds, Removal, Resizing};

use super::changes::Wish;
use super::declared::State;
use super::programs::Program;
use crate::random::Random;

/// The largest capacity that is declared.
pub const CAPACITY_MAX: u32 = 4;

/// A change of one name that is to be asked for.
pub struct Order {
    pub name: Vec<u8>,
    pub wish: Wish,
    pub expected: Option<Generation>,
}

impl Program {
    pub fn some_name(&self, random: &mut Random) -> Vec<u8> {
        let names = &self.beliefs.scene.declared;
        names[random.between(0, names.len() as u64 - 1) as usize].clone()
    }

    /// The generation that a name has, as if it had been read a moment ago; or none.
    fn some_generation(&self, name: &[u8], random: &mut Random) -> Option<Generation> {
        match self.beliefs.declared.now(name) {
            State::Declared(record) if random.percent(50) => Some(Generation(record.generation)),
            _ => None,
        }
    }
}

pub fn some_if_exists(random: &mut Random) -> IfExists {
    random.weighted(&[(IfExists::Fail, 1), (IfExists::Keep, 1), (IfExists::Set, 2)])
}

/// A change that somebody may want.
pub fn some_order(program: &Program, random: &mut Random) -> Order {
    let name = program.some_name(random);
    let (wish, is_exact) = match random.between(0, 10) {
        0..=3 => (some_declare(random), false),
        4..=8 => (Wish::Resize(some_resizing(random)), true),
        _ => (Wish::Remove(some_removal(random)), true),
    };
    let expected = if is_exact { program.some_generation(&name, random) } else { None };
    Order { name, wish, expected }
}

fn some_resizing(random: &mut Random) -> Resizing {
    let amount = random.between_u32(0, CAPACITY_MAX);
    match random.between(0, 2) {
        0 => Resizing::To(amount),
        1 => Resizing::GrowBy(amount.max(1)),
        _ => Resizing::ShrinkBy(amount.max(1)),
    }
}

fn some_removal(random: &mut Random) -> Removal {
    let grace = Milliseconds(random.weighted(&[(0, 1), (500, 1), (3000, 1)]));
    random.weighted(&[(Removal::IfIdle, 1), (Removal::WithLastHolder, 1), (Removal::Now { grace }, 1)])
}

/// A semaphore that is declared; few differ in whether they have slots, which cannot change while they are held.
fn some_declare(random: &mut Random) -> Wish {
    Wish::Declare {
        capacity: random.between_u32(0, CAPACITY_MAX),
        numbered: random.percent(80),
        label: random.weighted::<&[u8]>(&[(b"", 1), (b"room 3", 1)]).to_vec(),
        if_exists: some_if_exists(random),
    }
}
