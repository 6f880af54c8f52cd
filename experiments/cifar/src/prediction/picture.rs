//! Reads a picture from a file and makes it fit the network.
//!
//! 1. The picture is rotated as its Exif orientation says.
//! 2. It is cropped to the largest centred square. Stretching it instead would show the network
//!    shapes that it has not seen in training.
//! 3. Transparent pixels are filled with the mean colour of the training images, which becomes zero
//!    when it is normalized.
//! 4. It is resized to the size of the training images with a Catmull-Rom filter. A picture that
//!    has this size already keeps its pixels.
//! 5. For Fashion-MNIST it is resized to 28 x 28 pixels and padded with black to 32 x 32, as the
//!    training images are.

use std::io::{BufRead, Cursor, Seek};
use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use candle_core::{Device, Tensor};
use image::imageops::{self, FilterType};
use image::{DynamicImage, ImageDecoder, ImageError, ImageReader, Limits};

use crate::data::{Interface, Normalization, Shape, Source};
use crate::limits;

/// The warning about a JPEG file that ends too early.
const TRUNCATED: &str = "the file is cut off, and the decoder has made up the missing part";

/// A picture that fits a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// The pixels channel by channel, row by row.
    pub pixels: Vec<u8>,
    /// What is wrong with the file, if it could be decoded all the same.
    pub warning: Option<&'static str>,
}

/// The input format of a network: the shape of its images and how pixels are normalized.
#[derive(Clone, Debug)]
pub struct Frame {
    shape: Shape,
    normalization: Normalization,
    /// Width of the black border on each side.
    margin: usize,
}

impl Frame {
    /// The frame of a network with this interface that was trained on `source`.
    pub fn new(interface: &Interface, source: Source) -> Result<Self> {
        let shape = interface.shape;
        let margin = match source {
            // 28 x 28 pixels, padded to 32 x 32.
            Source::FashionMnist => 2,
            Source::Cifar10 | Source::Synthetic => 0,
        };
        ensure!(
            matches!(shape.channels, 1 | 3) && shape.size > 2 * margin,
            "pictures cannot be converted to images of {} channels and {} x {} pixels",
            shape.channels,
            shape.size,
            shape.size
        );
        let normalization = interface.normalization.clone();
        let channels = [&normalization.mean, &normalization.deviation].map(Vec::len);
        ensure!(
            channels == [shape.channels; 2],
            "the normalization has {channels:?} channels, and the images have {}",
            shape.channels
        );
        Ok(Self { shape, normalization, margin })
    }

    /// Reads a PNG or JPEG file.
    pub fn read(&self, path: &Path) -> Result<Picture> {
        let bytes = limits::read(path, limits::PICTURE).context("it cannot be read")?;
        let pixels = self.fit(decode(ImageReader::new(Cursor::new(&bytes)))?);
        let warning = is_truncated_jpeg(&bytes).then_some(TRUNCATED);
        Ok(Picture { pixels, warning })
    }

    /// The normalized picture as a batch of one, of shape (1, channels, height, width).
    pub fn tensor(&self, pixels: &[u8], device: &Device) -> Result<Tensor> {
        let Shape { channels, size } = self.shape;
        let tables = self.normalization.tables();
        let planes = pixels.chunks_exact(size * size).zip(&tables);
        let values: Vec<f32> = planes
            .flat_map(|(plane, table)| plane.iter().map(|pixel| table[usize::from(*pixel)]))
            .collect();
        let tensor = Tensor::from_vec(values, (1, channels, size, size), device)?;
        Ok(tensor)
    }

    /// Crops and resizes a picture to the frame.
    fn fit(&self, picture: DynamicImage) -> Vec<u8> {
        let side = picture.width().min(picture.height());
        let (left, top) = ((picture.width() - side) / 2, (picture.height() - side) / 2);
        let square = picture.crop_imm(left, top, side, side);
        drop(picture);
        let mean = self.normalization.mean.iter();
        let behind: Vec<f64> = mean.map(|mean| 255.0 * mean).collect();
        // A picture that is as large as the frame has its border already.
        let margin = if side as usize == self.shape.size { 0 } else { self.margin };
        let size = (self.shape.size - 2 * margin) as u32;
        // The alpha channel is opaque after blending, so it is dropped before resizing.
        let inner: Vec<u8> = if self.shape.channels == 1 {
            let mut grey = square.into_luma_alpha8();
            for image::LumaA([value, alpha]) in grey.pixels_mut() {
                *value = over(*value, *alpha, behind[0]);
            }
            let grey = DynamicImage::ImageLumaA8(grey).into_luma8();
            resized(grey, size).into_raw()
        } else {
            let mut colours = square.into_rgba8();
            for image::Rgba([red, green, blue, alpha]) in colours.pixels_mut() {
                for (value, behind) in [red, green, blue].into_iter().zip(&behind) {
                    *value = over(*value, *alpha, *behind);
                }
            }
            let colours = DynamicImage::ImageRgba8(colours).into_rgb8();
            resized(colours, size).into_raw()
        };
        self.planes(&inner, margin)
    }

    /// Converts interleaved channels to one plane per channel, with the border around it.
    fn planes(&self, inner: &[u8], margin: usize) -> Vec<u8> {
        let Shape { channels, size: full } = self.shape;
        let size = full - 2 * margin;
        let mut pixels = vec![0; self.shape.pixels()];
        for (place, value) in inner.iter().enumerate() {
            let (pixel, channel) = (place / channels, place % channels);
            let (row, column) = (pixel / size + margin, pixel % size + margin);
            pixels[(channel * full + row) * full + column] = *value;
        }
        pixels
    }
}

/// Blends a value with transparency `alpha` over a background.
fn over(value: u8, alpha: u8, behind: f64) -> u8 {
    let share = f64::from(alpha) / 255.0;
    (share * f64::from(value) + (1.0 - share) * behind).round() as u8
}

fn resized<P>(picture: image::ImageBuffer<P, Vec<u8>>, size: u32) -> image::ImageBuffer<P, Vec<u8>>
where
    P: image::Pixel<Subpixel = u8> + 'static,
{
    if picture.dimensions() == (size, size) {
        return picture;
    }
    imageops::resize(&picture, size, size, FilterType::CatmullRom)
}

/// Decodes a picture, unless it is too large.
fn decode<R: BufRead + Seek>(mut reader: ImageReader<R>) -> Result<DynamicImage> {
    // The format is guessed from the contents, not from the file's name.
    reader.clear_format();
    let mut reader = reader.with_guessed_format().context("it cannot be read")?;
    let mut allowed = Limits::default();
    allowed.max_alloc = Some(limits::DECODED);
    reader.limits(allowed.clone());
    let explain = |error| match error {
        ImageError::Limits(_) => too_large(),
        ImageError::Unsupported(_) => anyhow!("it is neither PNG nor JPEG"),
        error => anyhow!("it is damaged: {error}"),
    };
    let mut decoder = reader.into_decoder().map_err(explain)?;
    let (width, height) = decoder.dimensions();
    if u64::from(width) * u64::from(height) > limits::PIXELS {
        return Err(too_large());
    }
    let decoded = || -> std::result::Result<DynamicImage, ImageError> {
        allowed.reserve(decoder.total_bytes())?;
        decoder.set_limits(allowed)?;
        let orientation = decoder.orientation()?;
        let mut picture = DynamicImage::from_decoder(decoder)?;
        picture.apply_orientation(orientation);
        Ok(picture)
    };
    decoded().map_err(explain)
}

/// Whether a file is a JPEG without its end. The decoder accepts many such files, and fills the
/// missing part with grey.
///
/// A JPEG is a sequence of segments, each with a marker of two bytes and usually a length. After the
/// header of a scan come its data, in which a byte 0xff is followed by 0 or by a restart marker. The
/// last marker is 0xffd9; what follows it does not belong to the picture.
fn is_truncated_jpeg(bytes: &[u8]) -> bool {
    if !bytes.starts_with(&[0xff, 0xd8]) {
        return false;
    }
    let mut rest = &bytes[2..];
    loop {
        let is_marker =
            |pair: &[u8]| pair[0] == 0xff && !matches!(pair[1], 0x00 | 0xff | 0xd0..=0xd7);
        let Some(at) = rest.windows(2).position(is_marker) else {
            return true;
        };
        if rest[at + 1] == 0xd9 {
            return false;
        }
        let Some(&[high, low]) = rest.get(at + 2..at + 4) else {
            return true;
        };
        let length = usize::from(u16::from_be_bytes([high, low]));
        let Some(after) = rest.get(at + 2 + length..) else {
            return true;
        };
        rest = after;
    }
}

fn too_large() -> anyhow::Error {
    anyhow!(
        "it is too large: a picture may have {} million pixels, and {} megabytes when it is decoded",
        limits::PIXELS / 1_000_000,
        limits::DECODED >> 20
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(channels: usize, source: Source) -> Frame {
        let interface = Interface {
            shape: Shape { channels, size: 32 },
            normalization: Normalization {
                mean: vec![0.25; channels],
                deviation: vec![0.5; channels],
            },
            classes: vec![],
        };
        Frame::new(&interface, source).unwrap()
    }

    fn plane(pixels: &[u8], channel: usize) -> &[u8] {
        &pixels[channel * 1024..][..1024]
    }

    #[test]
    fn a_picture_of_the_right_size_keeps_every_pixel() {
        let picture = image::RgbImage::from_fn(32, 32, |x, y| {
            image::Rgb([(x * 7) as u8, (y * 7) as u8, (x * y) as u8])
        });
        let pixels = frame(3, Source::Cifar10).fit(picture.clone().into());
        for (x, y, image::Rgb(values)) in picture.enumerate_pixels() {
            for (channel, value) in values.iter().enumerate() {
                assert_eq!(plane(&pixels, channel)[(y * 32 + x) as usize], *value);
            }
        }
    }

    #[test]
    fn the_square_amid_a_wide_picture_is_seen() {
        // Red on the left and right, blue in the middle.
        let picture = image::RgbImage::from_fn(300, 100, |x, _| {
            if (100..200).contains(&x) { image::Rgb([0, 0, 255]) } else { image::Rgb([255, 0, 0]) }
        });
        let pixels = frame(3, Source::Cifar10).fit(picture.into());
        assert!(plane(&pixels, 0).iter().all(|red| *red == 0));
        assert!(plane(&pixels, 2).iter().all(|blue| *blue == 255));
    }

    #[test]
    fn a_large_picture_is_averaged_and_not_picked_from() {
        // A chessboard of single pixels is grey from afar.
        let picture =
            image::GrayImage::from_fn(256, 256, |x, y| image::Luma([255 * ((x + y) % 2) as u8]));
        let pixels = frame(3, Source::Cifar10).fit(picture.into());
        assert!(pixels.iter().all(|value| (126..=129).contains(value)));
    }

    #[test]
    fn what_is_transparent_becomes_the_mean() {
        let picture = image::RgbaImage::from_fn(32, 32, |x, _| {
            image::Rgba([200, 100, 0, if x < 16 { 0 } else { 255 }])
        });
        let frame = frame(3, Source::Cifar10);
        let pixels = frame.fit(picture.into());
        assert_eq!((plane(&pixels, 0)[0], plane(&pixels, 0)[31]), (64, 200));
        let tensor = frame.tensor(&pixels, &Device::Cpu).unwrap();
        let first = tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap()[0];
        assert!(first.abs() < 0.005, "{first}");
    }

    #[test]
    fn fashion_keeps_its_margin_and_colours_become_grey() {
        let picture = image::RgbImage::from_pixel(28, 28, image::Rgb([255, 255, 255]));
        let pixels = frame(1, Source::FashionMnist).fit(picture.into());
        assert_eq!(pixels.len(), 1024);
        let bright = |row: usize, column: usize| pixels[row * 32 + column] == 255;
        assert!(bright(2, 2) && bright(29, 29) && !bright(1, 16) && !bright(16, 30));
        assert_eq!(pixels.iter().filter(|value| **value == 255).count(), 784);
        let framed = image::GrayImage::from_pixel(32, 32, image::Luma([9]));
        let pixels = frame(1, Source::FashionMnist).fit(framed.into());
        assert!(pixels.iter().all(|value| *value == 9));
    }

    #[test]
    fn what_is_no_picture_is_refused_by_its_kind() {
        let refused = |bytes: &[u8]| {
            let reader = ImageReader::new(Cursor::new(bytes.to_vec()));
            decode(reader).unwrap_err().to_string()
        };
        assert!(refused(b"hello").contains("neither PNG nor JPEG"));
        assert!(refused(b"").contains("neither PNG nor JPEG"));
        assert!(refused(b"GIF89a trailing bytes").contains("neither PNG nor JPEG"));
        let mut png = Vec::new();
        let picture = image::RgbImage::new(64, 64);
        picture.write_to(&mut Cursor::new(&mut png), image::ImageFormat::Png).unwrap();
        assert!(refused(&png[..png.len() / 2]).contains("damaged"));
        // A header that promises 40 gigabytes.
        png[16..24].copy_from_slice(&[0, 1, 0x86, 0xa0, 0, 2, 0x0d, 0x40]);
        let header_checksum = crc32(&png[12..29]);
        png[29..33].copy_from_slice(&header_checksum.to_be_bytes());
        let error = refused(&png);
        assert!(error.contains("million pixels"), "{error}");
    }

    #[test]
    fn a_jpeg_that_is_cut_off_is_refused_or_has_a_warning() {
        let picture = image::RgbImage::from_fn(48, 40, |x, y| {
            image::Rgb([(x * 5) as u8, (y * 6) as u8, (x * y) as u8])
        });
        let mut jpeg = Vec::new();
        picture.write_to(&mut Cursor::new(&mut jpeg), image::ImageFormat::Jpeg).unwrap();
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("a.jpg");
        let frame = frame(3, Source::Cifar10);
        let read = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            frame.read(&path)
        };
        assert_eq!(read(&jpeg).unwrap().warning, None);
        // What follows the end, as some cameras write it, is no reason to warn.
        assert_eq!(read(&[&jpeg[..], b"trailing bytes"].concat()).unwrap().warning, None);
        let mut accepted = 0;
        for length in 0..jpeg.len() {
            if let Ok(picture) = read(&jpeg[..length]) {
                assert_eq!(picture.warning, Some(TRUNCATED), "{length} of {} bytes", jpeg.len());
                accepted += 1;
            }
        }
        assert!(accepted > 10, "{accepted}");
    }

    #[test]
    fn a_picture_of_few_bits_and_many_pixels_is_refused() {
        // 13,800 x 13,800 pixels of one bit: 24 MB in memory, but 760 MB in colour.
        let mut png = Vec::new();
        let mut encoder = png::Encoder::new(&mut png, 13_800, 13_800);
        encoder.set_color(png::ColorType::Grayscale);
        encoder.set_depth(png::BitDepth::One);
        encoder.set_compression(png::Compression::Fastest);
        encoder.write_header().unwrap().write_image_data(&vec![0; 13_800 * 1_725]).unwrap();
        let error = decode(ImageReader::new(Cursor::new(png))).unwrap_err().to_string();
        assert!(error.contains("million pixels"), "{error}");
    }

    /// The checksum of PNG's chunks.
    fn crc32(bytes: &[u8]) -> u32 {
        let step = |crc: u32, byte: &u8| {
            (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
                (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg())
            })
        };
        !bytes.iter().fold(!0, step)
    }
}
