//! Random changes for administrators to request.

use signalbox::client::{Generation, IfExists, Milliseconds, Pausing, Removal, Resizing, SlotChange};

use super::applications::Application;
use super::changes::ChangeKind;
use super::declared::State;
use crate::random::Random;

/// The largest capacity that is declared.
pub const CAPACITY_MAX: u32 = 4;

/// A change of one name to request.
pub struct ChangeRequest {
    pub name: Vec<u8>,
    pub kind: ChangeKind,
    pub expected: Option<Generation>,
}

impl Application {
    pub fn random_name(&self, random: &mut Random) -> Vec<u8> {
        let names = &self.expectations.scene.declared;
        names[random.between(0, names.len() as u64 - 1) as usize].clone()
    }

    /// The generation of a name as if it had just been read, or `None`.
    fn random_generation(&self, name: &[u8], random: &mut Random) -> Option<Generation> {
        match self.expectations.declared.now(name) {
            State::Declared(record) if random.percent(50) => Some(Generation(record.generation)),
            _ => None,
        }
    }
}

pub fn random_if_exists(random: &mut Random) -> IfExists {
    random.weighted(&[(IfExists::Fail, 1), (IfExists::Keep, 1), (IfExists::Set, 2)])
}

/// A random change.
pub fn random_change_request(program: &Application, random: &mut Random) -> ChangeRequest {
    let name = program.random_name(random);
    let (kind, is_exact) = match random.between(0, 17) {
        0..=3 => (random_declaration(random), false),
        4..=8 => (ChangeKind::Resize(random_resizing(random)), true),
        9..=10 => (ChangeKind::Remove(random_removal(random)), true),
        // What is paused or out of service does not stay so for long, because nothing happens to it.
        11..=14 => (ChangeKind::Pause(random.weighted(&[(Pausing::Pause, 1), (Pausing::Resume, 2)])), true),
        _ => (ChangeKind::SetSlot(random_slot_change(random)), true),
    };
    let expected = if is_exact { program.random_generation(&name, random) } else { None };
    ChangeRequest { name, kind, expected }
}

fn random_resizing(random: &mut Random) -> Resizing {
    let amount = random.between_u32(0, CAPACITY_MAX);
    match random.between(0, 2) {
        0 => Resizing::To(amount),
        1 => Resizing::GrowBy(amount.max(1)),
        _ => Resizing::ShrinkBy(amount.max(1)),
    }
}

/// A slot that a semaphore may have.
pub fn random_slot(random: &mut Random) -> u16 {
    random.weighted(&[(0, 3), (1, 3), (2, 1), (3, 1)])
}

fn random_slot_change(random: &mut Random) -> SlotChange {
    let slot = random_slot(random);
    random.weighted(&[(SlotChange::Out(slot), 1), (SlotChange::In(slot), 1)])
}

fn random_removal(random: &mut Random) -> Removal {
    let grace = Milliseconds(random.weighted(&[(0, 1), (500, 1), (3000, 1)]));
    random.weighted(&[(Removal::IfIdle, 1), (Removal::WithLastHolder, 1), (Removal::Now { grace }, 1)])
}

/// A random declaration; few differ in whether they have slots, which cannot change while slots are held.
fn random_declaration(random: &mut Random) -> ChangeKind {
    ChangeKind::Declare {
        capacity: random.between_u32(0, CAPACITY_MAX),
        numbered: random.percent(80),
        label: random.weighted::<&[u8]>(&[(b"", 1), (b"room 3", 1)]).to_vec(),
        if_exists: random_if_exists(random),
    }
}
