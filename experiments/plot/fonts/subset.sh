#!/bin/sh
# Makes the font files of this folder from the Debian packages fonts-inter and fonts-dejavu-core.
# Needs Python with `fonttools` and `brotli`. Usage: subset.sh DIR_WITH_INTER_OTF DIR_WITH_DEJAVU_TTF
set -eu
inter=$1
dejavu=$2
here=$(dirname "$0")
latin_greek="U+0020-007E,U+00A0-017F,U+0384-03CE,U+03D1,U+03D5,U+03F5"
signs="U+2009-200A,U+2010-2026,U+202F,U+2030-2033,U+2070-209C,U+20AC,U+2113,U+2122,U+2190-2195,U+21D2,U+2202-2265"
for weight in Regular SemiBold; do
  out=$here/Inter-$weight.subset
  # The rasterizer reads plain outlines; browsers also get kerning and tabular figures.
  pyftsubset "$inter/Inter-$weight.otf" --unicodes="$latin_greek,$signs" --layout-features= \
    --no-hinting --desubroutinize --output-file="$out.otf"
  pyftsubset "$inter/Inter-$weight.otf" --unicodes="$latin_greek,$signs" --layout-features=kern,mark,tnum \
    --no-hinting --desubroutinize --flavor=woff2 --output-file="$out.woff2"
done
# Mathematical signs that Inter does not have.
pyftsubset "$dejavu/DejaVuSans.ttf" --layout-features= --no-hinting --output-file="$here/DejaVuSans.subset.ttf" \
  --unicodes="U+211D,U+2200,U+2203,U+2207,U+2208,U+2209,U+2217,U+2218,U+221D,U+2225,U+223C,U+2243,U+2261,U+226A,U+226B,U+22C5,U+27E8,U+27E9,U+2713,U+2717"
