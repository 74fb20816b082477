// Encodes a generated video with several threads, and decodes it.
//
// usage: openh264 [FRAMES [THREADS]]      (default 30 2)
//
// The output depends on FRAMES and THREADS.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "codec_api.h"

enum { WIDTH = 640, HEIGHT = 368 };

static void fail(const char *what) {
    fprintf(stderr, "openh264: %s\n", what);
    exit(1);
}

static uint64_t checksum(uint64_t sum, const unsigned char *bytes, size_t length) {
    for (size_t i = 0; i < length; i++)
        sum = (sum ^ bytes[i]) * 1099511628211u;
    return sum;
}

// Moving gradients, a disc that crosses the image, and some noise.
static void draw(int frame, std::vector<unsigned char> &picture) {
    uint32_t noise = (uint32_t)frame * 2654435761u + 1;
    for (int y = 0; y < HEIGHT; y++)
        for (int x = 0; x < WIDTH; x++) {
            const int dx = x - frame * 7 % WIDTH, dy = y - HEIGHT / 2;
            noise = noise * 1664525u + 1013904223u;
            picture[y * WIDTH + x] = dx * dx + dy * dy < 6000 ? 220 - (dx & 15) : ((x + frame * 3) ^ y) / 3 + (noise >> 30);
        }
    for (int y = 0; y < HEIGHT / 2; y++)
        for (int x = 0; x < WIDTH / 2; x++) {
            picture[WIDTH * HEIGHT + y * WIDTH / 2 + x] = 128 + (x + frame) % 40;
            picture[WIDTH * HEIGHT * 5 / 4 + y * WIDTH / 2 + x] = 128 - (y + frame) % 40;
        }
}

int main(int argc, char **argv) {
    const int frames = argc > 1 ? atoi(argv[1]) : 30, threads = argc > 2 ? atoi(argv[2]) : 2;
    std::vector<unsigned char> picture(WIDTH * HEIGHT * 3 / 2);
    ISVCEncoder *encoder = nullptr;
    ISVCDecoder *decoder = nullptr;
    SEncParamExt parameters;
    SDecodingParam decoding = {};

    if (WelsCreateSVCEncoder(&encoder) != 0 || WelsCreateDecoder(&decoder) != 0)
        fail("out of memory");
    encoder->GetDefaultParams(&parameters);
    parameters.iUsageType = CAMERA_VIDEO_REAL_TIME;
    parameters.iPicWidth = WIDTH;
    parameters.iPicHeight = HEIGHT;
    parameters.fMaxFrameRate = 30;
    parameters.iTargetBitrate = 1500000;
    parameters.iRCMode = RC_OFF_MODE;
    parameters.bEnableFrameSkip = false;
    parameters.bUseLoadBalancing = false;
    parameters.iMultipleThreadIdc = (unsigned short)threads;
    parameters.sSpatialLayers[0].iVideoWidth = WIDTH;
    parameters.sSpatialLayers[0].iVideoHeight = HEIGHT;
    parameters.sSpatialLayers[0].fFrameRate = 30;
    parameters.sSpatialLayers[0].iSpatialBitrate = 1500000;
    parameters.sSpatialLayers[0].iDLayerQp = 28;
    parameters.sSpatialLayers[0].sSliceArgument.uiSliceMode = SM_FIXEDSLCNUM_SLICE;
    parameters.sSpatialLayers[0].sSliceArgument.uiSliceNum = (unsigned)threads;
    if (encoder->InitializeExt(&parameters) != 0)
        fail("the parameters were refused");
    decoding.sVideoProperty.eVideoBsType = VIDEO_BITSTREAM_AVC;
    if (decoder->Initialize(&decoding) != 0)
        fail("no decoder");

    uint64_t encoded = 14695981039346656037u, decoded = encoded;
    size_t bytes = 0;
    int shown = 0;
    for (int frame = 0; frame < frames; frame++) {
        SSourcePicture source = {};
        SFrameBSInfo info = {};
        std::vector<unsigned char> stream;

        draw(frame, picture);
        source.iPicWidth = WIDTH;
        source.iPicHeight = HEIGHT;
        source.iColorFormat = videoFormatI420;
        source.iStride[0] = WIDTH;
        source.iStride[1] = source.iStride[2] = WIDTH / 2;
        source.pData[0] = picture.data();
        source.pData[1] = source.pData[0] + WIDTH * HEIGHT;
        source.pData[2] = source.pData[1] + WIDTH * HEIGHT / 4;
        source.uiTimeStamp = frame * 33;
        if (encoder->EncodeFrame(&source, &info) != cmResultSuccess)
            fail("encoding failed");
        for (int layer = 0; layer < info.iLayerNum; layer++) {
            size_t length = 0;
            for (int unit = 0; unit < info.sLayerInfo[layer].iNalCount; unit++)
                length += info.sLayerInfo[layer].pNalLengthInByte[unit];
            stream.insert(stream.end(), info.sLayerInfo[layer].pBsBuf, info.sLayerInfo[layer].pBsBuf + length);
        }
        encoded = checksum(encoded, stream.data(), stream.size());
        bytes += stream.size();

        unsigned char *planes[3] = {};
        SBufferInfo out = {};
        if (decoder->DecodeFrameNoDelay(stream.data(), (int)stream.size(), planes, &out) != 0)
            fail("decoding failed");
        if (out.iBufferStatus == 1) {
            shown++;
            for (int y = 0; y < HEIGHT; y++)
                decoded = checksum(decoded, planes[0] + y * out.UsrData.sSystemBuffer.iStride[0], WIDTH);
        }
    }
    printf("%d frames, %zu bytes, %016lx, %d decoded, %016lx\n", frames, bytes, (unsigned long)encoded, shown, (unsigned long)decoded);
    encoder->Uninitialize();
    WelsDestroySVCEncoder(encoder);
    decoder->Uninitialize();
    WelsDestroyDecoder(decoder);
    return 0;
}
